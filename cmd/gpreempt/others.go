package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file finds the others on a GPU: processes that NVIDIA's management library lists and no segment has. The library preempts none of
// them.

// user is a process on a GPU, as the management library says. An unknown field is nil, or empty.
type user struct {
	cli.User
	Name    string  `json:"name,omitempty"`
	UID     *uint32 `json:"uid,omitempty"`
	Seen    bool    `json:"seen"`              // there is a process of that PID here
	Library *bool   `json:"library,omitempty"` // it has loaded libgpreempt.so
	Off     string  `json:"off,omitempty"`     // the rule of a broker's policy that gives it no role
}

// askUsers asks once.
func askUsers() (map[string][]user, error) {
	p, err := startProbe(os.Environ(), "processes")
	if err != nil {
		return nil, err
	}
	defer p.end()
	return readUsers(p)
}

// readUsers reads an answer: by the UUID of a GPU who is on it.
func readUsers(p *probe) (map[string][]user, error) {
	lines, err := p.report(cli.UsersLimit)
	if err != nil {
		return nil, fmt.Errorf("the probe of libnvidia-ml.so.1 %w", err)
	}
	listed, err := cli.ReadUsers(lines)
	if err != nil {
		return nil, err
	}
	all := map[string][]user{}
	for gpu, on := range listed {
		all[gpu] = []user{}
		for _, u := range on {
			all[gpu] = append(all[gpu], user{User: u})
		}
	}
	return all, nil
}

// others are the processes on a GPU that no segment has, whether by files or of a broker. proc is /proc.
func others(users []user, snapshots []segment.Snapshot, proc string) []user {
	list := []user{}
	for _, u := range users {
		member := slices.ContainsFunc(snapshots, func(s segment.Snapshot) bool {
			return slices.ContainsFunc(s.Peers, func(p segment.Peer) bool { return u.PID != 0 && int(p.Owner) == u.PID })
		})
		if !member && !slices.ContainsFunc(list, func(before user) bool { return u.PID != 0 && before.PID == u.PID }) {
			u.look(proc)
			list = append(list, u)
		}
	}
	return list
}

// explain says of others that a broker's policy gives them no role.
func explain(list []user, config configs.Config) []user {
	if len(list) > 0 && config.Segment.Broker != "" {
		off := member.Off(config.Segment.Broker)
		for i := range list {
			list[i].Off = clean(off[list[i].PID])
		}
	}
	return list
}

// look finds out what this user may know of a process. One that is not here has ended just now, or is in another PID namespace.
func (u *user) look(proc string) {
	folder := filepath.Join(proc, strconv.Itoa(u.PID))
	var stat unix.Stat_t
	if u.PID == 0 || unix.Stat(folder, &stat) != nil {
		return
	}
	u.Seen, u.UID = true, &stat.Uid
	if name, err := os.ReadFile(filepath.Join(folder, "comm")); err == nil {
		u.Name = clean(strings.TrimSpace(string(name)))
	}
	if maps, err := os.ReadFile(filepath.Join(folder, "maps")); err == nil && len(maps) > 0 {
		loaded := bytes.Contains(maps, []byte("/libgpreempt.so"))
		u.Library = &loaded
	}
}

func (u *user) String() string {
	var about []string
	text := fmt.Sprintf("%d", u.PID)
	if u.Name != "" {
		text += " " + u.Name
	}
	if u.UID != nil && int(*u.UID) != os.Getuid() {
		about = append(about, fmt.Sprintf("user %d", *u.UID))
	}
	if u.Bytes != nil {
		about = append(about, amount(*u.Bytes))
	}
	if u.Percent != nil {
		about = append(about, fmt.Sprintf("%d %%", *u.Percent))
	}
	if u.Off != "" {
		about = append(about, fmt.Sprintf("off, as the rule %q of the broker says", u.Off))
	} else if u.Library != nil && *u.Library {
		about = append(about, "has the library, and is not among these")
	}
	if len(about) == 0 {
		return text
	}
	return text + " (" + strings.Join(about, ", ") + ")"
}

// sayOthers is a list for people; "" where there are none.
func sayOthers(list []user) string {
	var texts []string
	unseen := 0
	for i := range list {
		if list[i].Seen {
			texts = append(texts, list[i].String())
		} else {
			unseen++
		}
	}
	if unseen > 0 {
		texts = append(texts, fmt.Sprintf("%d that cannot be seen from here (another PID namespace, or ended)", unseen))
	}
	return strings.Join(texts, ", ")
}

// userWatch asks again and again, beside those who want to know.
type userWatch struct {
	first chan struct{} // closed once there is an answer
	mutex sync.Mutex
	users map[string][]user
	err   error
}

// watchUsers asks until ctx is done, or an answer fails.
func watchUsers(ctx context.Context) *userWatch {
	w := &userWatch{first: make(chan struct{})}
	go func() {
		p, err := startProbe(os.Environ(), "processes")
		if err != nil {
			w.set(nil, err)
			close(w.first)
			return
		}
		defer p.end()
		for asked := false; ; asked = true {
			users, err := readUsers(p)
			w.set(users, err)
			if !asked {
				close(w.first)
			}
			if err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(cli.UsersEvery):
			}
			if _, err := p.stdin.Write([]byte{'\n'}); err != nil {
				w.set(nil, fmt.Errorf("ask the probe of libnvidia-ml.so.1: %w", err))
				return
			}
		}
	}()
	return w
}

func (w *userWatch) set(users map[string][]user, err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.users, w.err = users, err
}

// get is the last answer. Both are nil where there is none yet.
func (w *userWatch) get() (map[string][]user, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.users, w.err
}

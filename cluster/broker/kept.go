package broker

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file keeps what people set beyond the broker's end. It is in a file that only the broker's user can write, for as long as the
// process lives that it is about. The pid and the time of its start identify a process, so no other process can take the setting over.

const (
	keepEvery = 100 * time.Millisecond // the file is not written more often
	mostKept  = 1 << 20                // bytes that are read of it
)

// keptFile is the contents of the file.
type keptFile struct {
	Boot string `json:"boot"` // id of the machine's start
	Set  []kept `json:"set"`
}

type kept struct {
	Pid     int32  `json:"pid"`
	Started uint64 `json:"started"`
	GPU     string `json:"gpu"` // hexadecimal
	Slice   bool   `json:"slice,omitempty"`
	Fields  uint8  `json:"fields"`
	Level   uint8  `json:"level,omitempty"`
	Paused  uint8  `json:"paused,omitempty"`
	Share   uint32 `json:"share,omitempty"` // millionths
	Most    uint32 `json:"share_max,omitempty"`

	Objective configs.ObjectiveWord `json:"objective,omitempty"`
}

// Keep keeps settings of people in a file, and takes over those that an earlier broker has left there. To be called before Run. An error
// says that the file cannot be trusted or read, and that nothing was taken over.
func (s *Server) Keep(path string) error {
	s.keepsIn = path
	data, err := readOwn(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var file keptFile
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return fmt.Errorf("read what people set: %s: %w", path, err)
	}
	if file.Boot != bootID() {
		return nil
	}
	for _, k := range file.Set {
		set := wire.Set{Pid: k.Pid, Fields: k.Fields, Level: k.Level, Paused: k.Paused, Share: k.Share, ShareMax: k.Most, Objective: k.Objective}
		gpu, bad := hex.DecodeString(k.GPU)
		if _, err := wire.Decode(wire.Encode(&set)); err != nil || bad != nil || len(gpu) != 16 || k.Fields&wire.SetClear != 0 {
			clear(s.left)
			return fmt.Errorf("read what people set: %s: %+v makes no sense", path, k)
		}
		if k.Started != 0 && startOf(k.Pid) == k.Started {
			s.left[target{k.Pid, k.Started, segment.GPU{UUID: [16]byte(gpu), Slice: k.Slice}}] = set
		}
	}
	return nil
}

// readOwn reads a file that only this user, or root, can have written.
func readOwn(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var is unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &is); err != nil {
		return nil, err
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG || is.Mode&0o022 != 0 || int(is.Uid) != os.Geteuid() && is.Uid != 0 {
		return nil, errors.New("others can write it")
	}
	return io.ReadAll(io.LimitReader(file, mostKept))
}

func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // there since Linux 2.6
	return string(bytes.TrimSpace(id))
}

func (c *client) target() target { return target{c.who.pid, c.who.started, c.gpu.id} }

// takeOver gives a new client the settings that people made for it at an earlier broker.
func (s *Server) takeOver(c *client) {
	if set, is := s.left[c.target()]; is {
		delete(s.left, c.target())
		set.Pid = 0
		c.set = set
		c.judge(s)
	}
}

// keepSet writes the settings if they have changed and it is time. At the end it writes at any time.
func (s *Server) keepSet(now time.Time, end bool) {
	if !s.unkept || s.keepsIn == "" || now.Before(s.keepNext) && !end {
		return
	}
	s.unkept, s.keepNext = false, now.Add(keepEvery)
	file := keptFile{Boot: bootID()}
	add := func(t target, set wire.Set) {
		file.Set = append(file.Set, kept{t.pid, t.started, hex.EncodeToString(t.gpu.UUID[:]), t.gpu.Slice, set.Fields, set.Level, set.Paused, set.Share, set.ShareMax, set.Objective})
	}
	for _, c := range s.clients {
		if c.set.Fields != 0 {
			add(c.target(), c.set)
		}
	}
	for t, set := range s.left {
		if startOf(t.pid) != t.started { // it has ended
			delete(s.left, t)
			continue
		}
		add(t, set)
	}
	if err := writeOwn(s.keepsIn, file); err != nil {
		s.say(zerolog.ErrorLevel, sayNotKept, everyone).Err(err).Msg(sayNotKept)
	}
}

// writeOwn replaces the file, or removes it if there is nothing to be kept.
func writeOwn(path string, file keptFile) error {
	if len(file.Set) == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(file)
	if err != nil {
		return err
	}
	temporary := path + ".new"
	_ = os.Remove(temporary) // else no broker was killed here
	next, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = next.Write(data)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	return err
}

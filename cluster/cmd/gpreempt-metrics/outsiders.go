package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/metrics"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// This file has the facts that no segment holds: which other processes are on the GPUs, and the broker's own counters.

// againAfter is when it is tried again to find out who is on the GPUs, after that failed.
const againAfter = time.Minute

// reader reads segments, and knows whose they were.
type reader struct {
	read    func() ([]segment.Snapshot, error)
	members atomic.Pointer[map[int]bool]
}

func (r *reader) look() ([]segment.Snapshot, error) {
	all, err := r.read()
	if err == nil {
		members := map[int]bool{}
		for i := range all {
			for j := range all[i].Peers {
				members[int(all[i].Peers[j].Owner)] = true
			}
		}
		r.members.Store(&members)
	}
	return all, err
}

func (r *reader) known() map[int]bool {
	if members := r.members.Load(); members != nil {
		return *members
	}
	return nil
}

// watchUsers tells again and again who is on the GPUs, until ctx is done. It says once why it cannot. Without again it does so once.
func watchUsers(ctx context.Context, to *metrics.Outsiders, again bool, log io.Writer) {
	var from *cli.Lister
	defer func() { from.End() }()
	for said := ""; ; {
		users, err, wait := map[string][]cli.User(nil), error(nil), cli.UsersEvery
		if from == nil {
			from, err = cli.StartLister()
		}
		if err == nil {
			users, err = from.Ask()
		}
		to.Set(usersOf(users, "/proc"))
		if err != nil {
			from.End()
			from, wait = nil, againAfter
			if said != err.Error() {
				said = err.Error()
				fmt.Fprintln(log, "processes without gpreempt are not looked for:", said)
			}
		}
		if !again {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// usersOf are the users of GPUs in this PID namespace: a process in another one cannot be told from one under the library.
func usersOf(users map[string][]cli.User, proc string) map[string][]metrics.User {
	if users == nil {
		return nil
	}
	all := map[string][]metrics.User{}
	for gpu, on := range users {
		all[gpu] = []metrics.User{}
		for i := range on {
			if u := &on[i]; u.IsHere(proc) {
				found := metrics.User{PID: u.PID, Works: u.Works()}
				if u.Bytes != nil {
					found.Bytes = *u.Bytes
				}
				all[gpu] = append(all[gpu], found)
			}
		}
	}
	return all
}

// askBroker is what a broker has counted. Both are nil where there is no socket: then there is no broker, and need not be one.
func askBroker(directory string) (counted *wire.Counted, err error) {
	if directory == "" {
		return nil, nil
	}
	err = member.ReachToAsk(directory, func(path string) error {
		counted, err = join.Statistics(path)
		return err
	})
	there := slices.ContainsFunc(join.Sockets(directory), func(path string) bool { return unix.Access(path, unix.F_OK) == nil })
	if errors.Is(err, member.ErrNone) && !there {
		return nil, nil
	}
	return counted, err
}

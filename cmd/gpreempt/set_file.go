package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Settings of processes that found each other by files. There is no policy: a process takes an objective from whoever can write
// the segment.

// obeysWithin is how long a process may take. Its agent wakes at once.
const obeysWithin = 10 * time.Second

// setByFile sets the objective of a process that joined by files. done is false where no process of that number joined so: it may be a
// broker's.
func setByFile(ctx context.Context, settings configs.Config, m *wire.Set) (done bool, err error) {
	read := func() ([]segment.Snapshot, error) { return readFiles(settings) }
	snapshots, err := read()
	if err != nil {
		return false, err
	}
	list, err := byFile(snapshots, m.Pid)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if m.Fields&^(wire.SetObjective|wire.SetClear) != 0 {
		return false, fmt.Errorf("set %d: the process joined without a broker (gpreemptd): only --objective and --clear can be set", m.Pid)
	}
	for i := range list {
		if list[i].before.Level == configs.Levels-1 && m.Fields&wire.SetObjective != 0 {
			return false, fmt.Errorf("--objective %s: %s is best effort, must be of a level from 0 (lc) to %d", m.Objective, list[i].who(), configs.Levels-2)
		}
		if err := list[i].askObjective(m.Objective); err != nil {
			return false, err
		}
	}
	ctx, stop := context.WithTimeout(ctx, obeysWithin)
	defer stop()
	for {
		waits := slices.IndexFunc(list, func(r request) bool { return !r.obeyed(snapshots) })
		if waits < 0 {
			return true, overtaken(list, snapshots, m.Objective)
		}
		if list[waits].peer(snapshots) == nil {
			return false, fmt.Errorf("%s has ended", list[waits].who())
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%s has not answered; the request stands%s", list[waits].who(), silence(snapshots, &list[waits]))
		case <-time.After(10 * time.Millisecond):
		}
		if snapshots, err = read(); err != nil {
			return false, err
		}
	}
}

// byFile returns a request for each GPU that a process is on.
func byFile(snapshots []segment.Snapshot, pid int32) (list []request, err error) {
	for _, s := range snapshots {
		for _, p := range s.Peers {
			if p.Pid != pid {
				continue
			}
			if slices.ContainsFunc(list, func(r request) bool { return r.path == s.Path }) {
				return nil, fmt.Errorf("process %d: two processes in different PID namespaces have this number on %s", pid, s.GPU)
			}
			list = append(list, request{gpu: s.GPU, path: s.Path, before: p})
		}
	}
	return list, nil
}

func (r *request) askObjective(says configs.ObjectiveWord) error {
	reader, err := segment.OpenReader(r.path)
	if err != nil {
		return err
	}
	defer reader.Close()
	if r.number, err = reader.AskObjective(r.before.Slot, r.before.StartedNs, says); err != nil {
		return fmt.Errorf("%s: %w", r.who(), err)
	}
	return nil
}

func (r *request) obeyed(snapshots []segment.Snapshot) bool {
	p := r.peer(snapshots)
	return p != nil && p.Obeys(r.number)
}

// overtaken says whether a process has another objective than the one that this command set: another command set it meanwhile.
func overtaken(list []request, snapshots []segment.Snapshot, asked configs.ObjectiveWord) error {
	for i := range list {
		has := "none"
		if o := list[i].peer(snapshots).Objective; o != nil && o.Wanted != "" {
			has = o.Wanted
		}
		if asked.Says() && has != asked.String() {
			return fmt.Errorf("%s: its objective is %s: somebody else set it meanwhile", list[i].who(), has)
		}
	}
	return nil
}

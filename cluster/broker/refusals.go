package broker

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/cluster/pods"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Whom the policy does not take runs on as best effort among the programs of its user, or without a role. The broker remembers who
// that is, so that people can see why a program is no client.

// mostRefusals are remembered. Beyond that the owner that has most of them loses its first: who is refused often costs others nothing.
const mostRefusals = 128

// refusalAgain is when one that the policy refused may ask again: there may be another policy.
const refusalAgain = time.Minute

// refusal is a process that the policy does not take.
type refusal struct {
	entry wire.Entry // but for its pid
	who   identity   // without what may be large
}

func (r *refusal) is(pid int32, gpu segment.GPU) bool {
	return r.who.pid == pid && (r.entry.GPU == gpu.UUID || r.entry.GPU == [16]byte{})
}

// lives says whether the process still exists.
func (r *refusal) lives() bool { return startOf(r.who.pid) == r.who.started }

// judged notes what the policy says of a process that wants to be a client on a GPU (zero: it has not said on which). It returns the reason
// of a refusal; 0: the process may be a client.
func (s *Server) judged(c *client, gpu segment.GPU) wire.Reason {
	s.refusals = slices.DeleteFunc(s.refusals, func(r *refusal) bool { return r.is(c.who.pid, gpu) })
	if c.grant.Admit {
		return 0
	}
	reason := wire.RefusedPolicy
	if c.grant.Off {
		reason = wire.RefusedOff
	}
	if len(s.refusals) == mostRefusals {
		i := first(s.refusals, func(r *refusal) owner { return r.who.owner() })
		s.refusals = slices.Delete(s.refusals, i, i+1)
	}
	r := &refusal{who: c.who, entry: wire.Entry{GPU: gpu.UUID, Slice: ofSlice(gpu.Slice), UID: c.who.uid, Socket: uint8(c.socket), Wanted: uint8(c.wanted), Refused: uint8(reason),
		Policy: wire.Policy{Level: wire.Levels - 1, Best: wire.Levels - 1}}}
	r.who.groups, r.who.pod = nil, pods.Pod{}
	wire.PutText(r.entry.Name[:], cmp.Or(c.name, nameOf(c.who.pid)))
	wire.PutText(r.entry.Rule[:], c.grant.Rule)
	wire.PutEnd(r.entry.Cgroup[:], c.who.cgroup)
	s.refusals = append(s.refusals, r)
	return reason
}

// sendRefusal sends the Entry of a refused process, if the asker may see it and the process still exists.
func (s *Server) sendRefusal(c *connection, r *refusal) error {
	if !c.admin && (c.level > int(r.entry.Socket) || !c.who.has(&r.who)) || !slices.Contains(s.refusals, r) || !r.lives() {
		return nil
	}
	e := r.entry
	e.Pid = pidFor(&c.who, &r.who)
	return s.send(c.fd, &e)
}

// nameOf is what the kernel calls a process.
func nameOf(pid int32) string {
	name, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(int(pid)), "comm"))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(name))
}

package agent

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func init() { inForce[configs.Turns] = (*agent).canTakeTurns }

// canTakeTurns says whether this process could take turns with others, if there are any.
func (a *agent) canTakeTurns() bool {
	return a.uses(configs.Turns) && a.core.levelNow() == lowestLevel && !a.refused && !a.noTurns && a.device.joined() && a.segment.Attended()
}

// seizeAfter is how late an owner may be after its quantum, beyond the time of an RM control.
const seizeAfter = 250 * time.Millisecond

// quantumMs is how long a turn is: a broker's policy says, whose clients all have the same, or the configuration.
func (a *agent) quantumMs() uint64 {
	const most = 10_000
	return min(cmp.Or(uint64(a.segment.Limits().QuantumMs), a.core.config.Turns.QuantumMs), most)
}

// turn takes, keeps or hands on the turn among processes of the lowest level, and returns when to look again. A process that
// is not on its turn is off the runlist, whatever it has submitted; so is one that is capped, which wants no turn.
func (a *agent) turn(p peers, now uint64, capped bool) time.Duration {
	quantum := time.Duration(a.quantumMs()) * time.Millisecond
	turn := a.segment.Turn.Load()
	owner, owned := segment.TurnOwner(turn)
	held := time.Duration(now - min(now, a.segment.TurnSinceNs.Load()))
	wanted := a.segment.Busy(p.same)
	for m := wanted; m != 0; m &= m - 1 {
		if slot := bits.TrailingZeros64(m); !a.takesPart(slot, now) || a.segment.Slot(slot).Capped.Load() != 0 {
			wanted &^= 1 << slot
		}
	}
	probing := !capped && a.probes(now)
	want := probing || !capped && a.device.busy()
	// The owner may keep a turn that nobody wants: it is late only from when somebody wants it.
	if !want || a.askedTurn != turn {
		a.askedTurn, a.askedNs = turn, now
	}
	if !owned || owner != a.slot {
		a.due = 0
	}
	late := time.Duration(now - min(now, max(a.askedNs, a.segment.TurnSinceNs.Load())))

	switch {
	case owned && owner == a.slot:
		if a.countedTurn != turn { // taken, or handed to this process
			a.countedTurn = turn
			a.own().Turns.Add(1)
			if turn&segment.TurnSeized != 0 {
				a.own().TurnsSeized.Add(1)
			}
		}
		if capped { // it keeps a turn that nobody else can use
			if !a.schedule(false) {
				a.pass(turn, -1, held)
			} else if wanted != 0 {
				a.pass(turn, a.pick(wanted, now/uint64(quantum)), held)
			}
			return heartbeat
		}
		if a.off && !a.schedule(true) {
			return heartbeat
		}
		if probing {
			return time.Duration(probeFor)
		}
		if wanted == 0 {
			return heartbeat
		}
		next := a.pick(wanted, now/uint64(quantum))
		if want {
			if a.due == 0 {
				round, left := now/uint64(quantum), quantum-time.Duration(now%uint64(quantum))
				if a.segment.TurnSinceNs.Load()/uint64(quantum) == round || a.pick(wanted|1<<a.slot, round) == a.slot {
					return left
				}
				a.due = now
			}
			if due := a.pick(wanted|1<<a.slot, a.due/uint64(quantum)); due != a.slot {
				next = due
			}
		}
		if want && a.segment.WindowsOpen(p.higher) != 0 && now-a.due < uint64(quantum) {
			// Taking TSGs off the runlist would cost the higher level's request a switch.
			return windowPoll
		}
		if !a.schedule(false) {
			a.pass(turn, -1, held)
			return heartbeat
		}
		a.pass(turn, next, held)
		return heartbeat
	case !owned || p.same&(1<<owner) == 0:
		if want {
			return a.take(turn, false)
		}
	case want && late > 3*quantum+seizeAfter:
		return a.take(turn, true)
	case want:
		if !a.off {
			a.schedule(false)
		}
		return 3*quantum + seizeAfter - late + time.Millisecond
	}
	if !a.off {
		a.schedule(false)
	}
	return heartbeat
}

const windowPoll = time.Millisecond

// takesPart says whether a process of the same level can be handed a turn: one that is stopped, or that takes
// no turns, would not give it back.
func (a *agent) takesPart(slot int, now uint64) bool {
	s := a.segment.Slot(slot)
	heard := s.HeartbeatNs.Load()
	return s.Has(configs.Turns) && (heard >= now || now-heard < 3*uint64(heartbeat))
}

// A process that has been off the GPU for a while gets a turn of at least probeFor even if it has no known work: the driver
// may have work of its own, which nobody counts. The while grows as long as no work shows.
const (
	firstProbe = uint64(time.Second)
	lastProbe  = 16 * firstProbe
	probeFor   = uint64(5 * time.Millisecond)
)

func (a *agent) probes(now uint64) bool {
	switch {
	case a.probed == 0 && a.off && (now-a.offSince > a.probeAfter || a.drains()):
		a.probed = now
		a.device.probe(true)
		a.segment.Ring()
	case a.probed != 0 && !a.off && now-a.offSince > probeFor:
		a.probed = 0
		if a.device.busy() {
			a.probeAfter = firstProbe
		} else {
			a.probeAfter = min(2*a.probeAfter, lastProbe)
		}
		a.device.probe(false)
	}
	return a.probed != 0
}

// take takes the turn if it has not changed since it was seen.
func (a *agent) take(seen uint64, seized bool) time.Duration {
	if !a.segment.MoveTurn(false, seen, a.slot, seized, segment.Now()) {
		return time.Millisecond
	}
	if seized {
		a.wantUs = a.core.config.Timeslice.FairUs
		a.applyTimeslice()
	}
	if a.off {
		a.schedule(true)
	}
	a.segment.Ring()
	return time.Duration(a.quantumMs()) * time.Millisecond
}

// pass hands the turn to a slot, or to nobody (-1).
func (a *agent) pass(seen uint64, to int, held time.Duration) {
	a.own().TurnNs.Add(uint64(held))
	a.segment.MoveTurn(false, seen, to, false, segment.Now())
	a.segment.Ring()
}

// pick returns the slot that gets the turn of a round, of those that want it. A round is a quantum of the machine's clock.
//
// Processes of one job wait for each other across GPUs. If two jobs shared two GPUs and each had the turn on one, neither would get on. So
// rounds are the same on every GPU, and so is the order of jobs. A hash of job and rounds ranks them: in the first of two rounds the
// highest goes first, in the second the lowest. A job that shares a GPU with one other waits two rounds at most, and none has three in a
// row. Processes of one job on one GPU follow each other in the order of their start.
func (a *agent) pick(wanted, round uint64) int {
	var contenders []contender
	for m := wanted; m != 0; m &= m - 1 {
		slot := bits.TrailingZeros64(m)
		job, started := a.claimOf(slot)
		contenders = append(contenders, contender{job, started, slot})
	}
	return pickOf(contenders, round, round)
}

func (a *agent) claimOf(slot int) (job, started uint64) {
	s := a.segment.Slot(slot)
	is := claim{a.segment.Client[slot].Load(), s.Job.Load(), s.StartedNs.Load()}
	if !a.segment.Paged() || slot == a.slot {
		return is.job, is.started
	}
	if was := a.known[slot]; was.client == is.client && was.job != 0 {
		return was.job, was.started
	}
	if is.job != 0 { // it is written last
		a.known[slot] = is
	}
	return is.job, is.started
}

// contender is a process that wants a turn.
type contender struct {
	job, started uint64
	slot         int
}

// pickOf is pick: order is the round that the order of jobs depends on.
func pickOf(contenders []contender, order, round uint64) int {
	best := uint64(0)
	var chosen []contender
	for _, c := range contenders {
		rank := rankOf(c.job, order)
		if len(chosen) == 0 || rank > best {
			best, chosen = rank, nil
		}
		if rank == best {
			chosen = append(chosen, c)
		}
	}
	slices.SortFunc(chosen, func(a, b contender) int {
		return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.slot, b.slot))
	})
	return chosen[round%uint64(len(chosen))].slot
}

// rankOf returns the rank of a job in a round; in every other round the order is reversed.
func rankOf(job, round uint64) uint64 {
	// The finalizer of MurmurHash3 (public domain): every bit of its argument changes half of the result's.
	h := job ^ (round/2)*0x9e3779b97f4a7c15
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	if round%2 != 0 {
		return ^h
	}
	return h
}

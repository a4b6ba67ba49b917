package agent

import (
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// stayAway is what an agent does while the driver has locked or checkpointed the process, or the program is about to have it locked. Its
// work is to end then. So the process is on the runlist, in nobody's turn, with a timeslice that gets on beside the shortest one.
func (a *agent) stayAway(now uint64) time.Duration {
	turn := a.segment.Turn.Load()
	if owner, owned := segment.TurnOwner(turn); owned && owner == a.slot {
		a.pass(turn, -1, time.Duration(now-min(now, a.segment.TurnSinceNs.Load())))
	}
	if a.probed != 0 {
		a.probed = 0
		a.device.probe(false)
	}
	a.turns, a.boostUs, a.due = false, 0, 0
	a.wantUs = a.core.config.Timeslice.FairUs
	a.applyTimeslice()
	if a.off {
		a.schedule(true)
	}
	a.enforce()
	a.setLacks(configs.FallbackLocked, true)
	a.publish()
	a.keepMemory(now)
	if len(a.unsure) > 0 {
		return askAgain
	}
	return heartbeat
}

// keepMemory publishes what the process has while it stays away: all that it had, until a checkpoint frees it, and again once it is restored.
func (a *agent) keepMemory(now uint64) {
	if a.core.memory != nil {
		a.publishMemory(readMemory(a.gpu), memoryPlan{}, now)
	}
}

// learnAnew forgets what was learnt of the process's channels, and of how much it ran, once it has joined again: the driver has made them anew,
// maybe under the same names, and may have refused controls of those that were going.
func (a *agent) learnAnew() {
	n := a.device.rejoined()
	if n == a.rejoined {
		return
	}
	a.rejoined = n
	clear(a.uuids)
	clear(a.sliceUs)
	a.refused, a.noTurns, a.reported = false, false, false
	a.used, a.counted, a.pace = nil, usage{}, pace{}
	a.setLacks(configs.FallbackControlRefused|configs.FallbackSuspendRefused|configs.FallbackLocked, false)
	a.log.Info().Msg("the process has been unlocked, or its channels were made anew: it takes part again")
}

// A call, or a move of memory, that waits for the driver may wait because another process has locked this one, or for long work. The driver
// is asked after firstSuspect, and then less and less often until the program does something else; in any case at most once in askEvery.
const firstSuspect, askEvery = uint64(time.Second), uint64(5 * time.Second)

func (a *agent) suspect(now uint64) {
	behind := saturate(waitsBehind(a.gpu), a.movesBehind())
	if behind != a.behind || behind == 0 {
		a.behind, a.behindNs, a.suspectNs = behind, now, firstSuspect
		return
	}
	if now-a.behindNs < a.suspectNs || a.doubtedNs != 0 && now-a.doubtedNs < askEvery {
		return
	}
	a.doubtedNs, a.behindNs, a.suspectNs = now, now, 2*a.suspectNs
	doubt(a.gpu)
}

// movesBehind is a number that changes as memory moves; 0: none does.
func (a *agent) movesBehind() uint64 {
	if a.core.memory == nil {
		return 0
	}
	if _, moving := a.core.memory.mover.moving(a.gpu); !moving {
		return 0
	}
	c := readMemory(a.gpu)
	return 1 + c.outBytes + c.inBytes
}

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func init() { inForce[configs.Timeslice] = (*agent).canSetTimeslices }

// canSetTimeslices says whether this process sets timeslices.
func (a *agent) canSetTimeslices() bool {
	return a.uses(configs.Timeslice) && !a.refused && a.lacking&configs.FallbackNoTSG == 0
}

// driverDevice is the GPU of a number, as the driver has it.
type driverDevice int

func (d driverDevice) tsgs() []TSG      { return tsgs(int(d)) }
func (d driverDevice) worked() bool     { return worked(int(d)) }
func (d driverDevice) busy() bool       { return busy(int(d)) }
func (d driverDevice) probe(on bool)    { probe(int(d), on) }
func (d driverDevice) joined() bool     { return joined(int(d)) }
func (d driverDevice) rejoined() uint32 { return rejoined(int(d)) }

// uuid returns the UUID of the GPU that a TSG belongs to.
func (d driverDevice) uuid(t TSG) (uuid [16]byte, err error) {
	p := NV2080_CTRL_GPU_GET_GID_INFO_PARAMS{Flags: NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY}
	if err := control(int(d), t, t.subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &p); err != nil {
		return uuid, fmt.Errorf("get the UUID of subdevice %#x: %w", t.subdevice, err)
	}
	copy(uuid[:], p.Data[:])
	return uuid, nil
}

func (d driverDevice) policy(t TSG) (preset uint32, err error) {
	var p NV2080_CTRL_GPU_GET_COMPUTE_POLICY_CONFIG_PARAMS
	if err := control(int(d), t, t.subdevice, NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG, &p); err != nil {
		return 0, fmt.Errorf("get the compute policy of subdevice %#x: %w", t.subdevice, err)
	}
	for _, c := range p.ConfigList[:min(p.NumConfigs, NV2080_CTRL_GPU_COMPUTE_POLICY_CONFIG_LIST_MAX)] {
		if c.Type == NV2080_CTRL_GPU_COMPUTE_POLICY_TIMESLICE {
			preset = c.Timeslice
		}
	}
	return preset, nil
}

func (d driverDevice) setTimeslice(t TSG, us uint64) error {
	p := NVA06C_CTRL_TIMESLICE_PARAMS{TimesliceUs: us}
	if err := control(int(d), t, t.handle, NVA06C_CTRL_CMD_SET_TIMESLICE, &p); err != nil {
		return fmt.Errorf("set the timeslice of TSG %#x to %d us: %w", t.handle, us, err)
	}
	return nil
}

// timeslice is what the process's compute TSGs should have, in microseconds. turns: turns are taken; doubt: another process may be on the
// runlist in this one's turn.
func (a *agent) timeslice(p peers, turns, doubt bool) uint64 {
	t := a.core.config.Timeslice
	t.PreemptingUs = min(t.PreemptingUs, a.core.config.Hold.MaxMs*1000) // where no hold runs, a window has no other end
	yields := p.higher != 0 && p.lower == 0
	switch {
	case a.besideOthers(p):
		return max(t.FairUs, a.boostUs)
	case yields && (p.same == 0 || turns && !doubt):
		return max(t.BEUs, a.boostUs)
	case yields && turns && a.segment.Paged():
		// It may be a lie, and a higher level waits for this timeslice. It takes as long as a switch, so beside another one that is
		// short this process still gets on. Once the broker has seen that others work, they are waited for.
		return max(t.BEUs, min(leastBoostUs, t.FairUs), a.boostUs)
	case p.lower != 0 && p.same == 0:
		return t.PreemptingUs
	case p.same != 0 && (p.lower != 0 || a.core.levelNow() == 0):
		return min(a.windows.us(t.EqualsMinUs, t.EqualsUs), t.PreemptingUs)
	}
	return t.FairUs
}

// besideOthers says whether this process is one that yields, and others that do not know of it have work: beside their timeslices the
// shortest one would be next to nothing. A higher level waits for their timeslices in any case.
func (a *agent) besideOthers(p peers) bool {
	return p.higher != 0 && p.lower == 0 && a.segment.OthersWork()
}

func (a *agent) mine() []TSG {
	var mine []TSG
	all, uuids := a.device.tsgs(), a.uuids
	a.uuids = make(map[birthKey][16]byte, len(all))
	for _, t := range all {
		key := birthKey{t.client, t.handle, t.bornNs}
		uuid, known := uuids[key]
		if !known {
			var err error
			if uuid, err = a.device.uuid(t); err != nil {
				if !a.freed(t) && !passing(err) {
					a.refuse(err)
				}
				continue
			}
		}
		a.uuids[key] = uuid
		if uuid == a.whole {
			mine = append(mine, t)
		}
	}
	return mine
}

// settled says whether a TSG may be suspended. While libcuda makes a context it waits for work of its own, which nobody
// counts. So a TSG is not suspended before the process has submitted something, nor soon after libcuda's last control.
func (a *agent) settled(t TSG, now uint64) bool {
	return a.device.worked() && now-min(now, t.changedNs) > settleNs
}

// made says until when libcuda is making a TSG, as far as is known; 0: it is not.
func (t TSG) made(now uint64) (until uint64) {
	if until = t.madeNs + quietNs; until < now || now-min(now, t.bornNs) > youngNs {
		return 0
	}
	return until
}

// due says whether a TSG is to get another timeslice than it has. A TSG that libcuda is making gets one when it is made.
func (t TSG) due(has, want, now uint64) bool { return has != want && t.made(now) == 0 }

// settling is how long until the next of the TSGs is made, or settles if the process has worked by then; 0 where all have.
func settling(tsgs []TSG, now uint64) (wait time.Duration) {
	for _, t := range tsgs {
		for _, at := range [...]uint64{t.made(now), t.changedNs + settleNs} {
			if at >= now && (wait == 0 || time.Duration(at+1-now) < wait) {
				wait = time.Duration(at + 1 - now)
			}
		}
	}
	return wait
}

// applyTimeslice sets the timeslices of the process's TSGs, and tells others the longest that is in force.
func (a *agent) applyTimeslice() {
	if !a.uses(configs.Timeslice) || a.refused || a.wantUs == 0 {
		return
	}
	mine := a.mine()
	live := make(map[tsgKey]uint64, len(mine))
	now, longest := segment.Now(), uint64(0)
	wantUs := a.wantUs
	if len(mine) > 1 { // contexts of one process run beside each other: two short timeslices stop each other dead
		wantUs = max(wantUs, leastBoostUs)
	}
	for _, t := range mine {
		want := wantUs
		if a.turns && !a.settled(t, now) { // on the runlist beside the one whose turn it is
			want = max(want, a.core.config.Timeslice.FairUs)
		}
		key := tsgKey{t.client, t.handle, t.resets}
		us := a.sliceUs[key]
		if t.due(us, want, now) {
			if err := a.device.setTimeslice(t, want); err != nil {
				if a.freed(t) {
					continue
				}
				if passing(err) { // it is set when the TSG is seen next
					longest = max(longest, us)
					continue
				}
				a.refuse(err)
				return
			}
			if us == 0 {
				a.readPolicy(t)
			}
			us = want
			a.log.Debug().Uint64("us", us).Uint32("tsg", t.handle).Uint32("resets", t.resets).Msg("timeslice set")
			a.own().TimesliceSets.Add(1)
		}
		live[key] = us
		if us == 0 && len(mine) > 1 { // libcuda's own, until it is made
			us = a.core.config.Timeslice.FairUs
		}
		longest = max(longest, us)
	}
	a.sliceUs = live
	if longest > 0 {
		a.own().TimesliceUs.Store(uint32(longest))
	}
	a.setLacks(configs.FallbackNoTSG, len(mine) == 0)
}

// readPolicy says whether people want other timeslices on the GPU than the driver's default: gpreempt's take their place.
func (a *agent) readPolicy(t TSG) {
	preset, err := a.device.policy(t)
	if err != nil {
		a.log.Info().Err(err).Msg("whether nvidia-smi compute-policy sets timeslices is not known")
	}
	a.setLacks(configs.FallbackPolicy, preset != NV2080_CTRL_CMD_GPU_COMPUTE_TIMESLICE_DEFAULT)
}

func (a *agent) refuse(err error) {
	a.refused = true
	a.own().Mechanisms.And(^uint32(configs.Timeslice | configs.Turns)) // at once: the next look publishes it
	a.setLacks(configs.FallbackControlRefused, true)
	if !a.reported {
		a.reported = true
		a.log.Warn().Err(err).Msg("the driver refuses RM controls: this process cannot be preempted by timeslices")
	}
}

// schedule takes the process's compute TSGs off the runlist or puts them back.
func (a *agent) schedule(on bool) bool {
	if a.off == on {
		now := segment.Now()
		a.onNs, a.offSince = a.onFor(now), now
	}
	a.off = !on
	if on {
		a.own().Suspended.Store(0)
	} else {
		a.own().Suspended.Store(1)
	}
	return a.enforce()
}

// onFor is for how long the process was on the runlist.
func (a *agent) onFor(now uint64) uint64 {
	if a.off {
		return a.onNs
	}
	return a.onNs + now - min(now, a.offSince)
}

// cameBack takes note that this agent stood still for so long that its TSGs came back by themselves, with the fair timeslice.
func (a *agent) cameBack() {
	a.log.Info().Msg("the agent stood still: this process came back to the GPU by itself")
	clear(a.sliceUs)
	a.schedule(true) // what is marked as suspended may be, or not
}

// enforce suspends or schedules every settled TSG as schedule wanted. A control takes 220 to 570 us and preempts what runs.
// It returns false if the driver refuses.
func (a *agent) enforce() bool {
	if !a.off && len(a.suspended) == 0 { // what is not sure counts as suspended
		return true
	}
	now := segment.Now()
	live, unsure := make(map[tsgKey]bool, len(a.suspended)), map[tsgKey]uint64{}
	for _, t := range a.mine() {
		key := tsgKey{t.client, t.handle, t.resets}
		off := a.suspended[key]
		want := a.off && (off || a.settled(t, now))
		if want != off || a.unsure[key] != 0 || !off && a.hasSuspended(t) { // the latter: libcuda scheduled some of it meanwhile
			if err := a.device.schedule(t, !want); err != nil {
				if a.freed(t) {
					continue
				}
				if since := cmp.Or(a.unsure[key], now); passing(err) && now-since < passingNs {
					live[key], unsure[key] = true, since // some of it may be suspended: asked again, whatever is wanted
					continue
				}
				for k := range a.suspended { // what is suspended must come back
					live[k] = true
				}
				a.suspended = live
				if !a.noTurns { // it is asked again at each look, to come back
					a.log.Warn().Err(err).Msg("the driver refuses to suspend this process: no turns, and no giving way between levels")
				}
				a.noTurns = true
				a.setLacks(configs.FallbackSuspendRefused, true)
				return false
			}
		}
		if want {
			live[key] = true
		}
	}
	a.suspended, a.unsure = live, unsure
	return true
}

// passing says whether a refusal may only mean that libcuda is freeing or making one of the named objects.
func passing(err error) bool {
	var status StatusError
	return errors.As(err, &status) && status.passing()
}

// freed says whether a TSG was freed: controls of it then fail, and nothing is wrong.
func (a *agent) freed(t TSG) bool {
	return !slices.ContainsFunc(a.device.tsgs(), func(is TSG) bool { return is.client == t.client && is.handle == t.handle })
}

func (a *agent) hasSuspended(t TSG) bool {
	for key := range a.suspended {
		if key.client == t.client && key.handle == t.handle {
			return true
		}
	}
	return false
}

// Package agent decides what one process does on each of its GPUs. It finds the process's TSGs and sets their timeslices. It takes turns
// with peers, sees to the process's share, and tells the C core who else is there.
//
// A launch runs C (preempt/submit.c), which calls nothing here. A Core looks after a process, an agent after one of its GPUs; each has a
// goroutine. Others wait in C for as long as the process lives: among them the watcher, which closes windows; the guard, which puts back
// TSGs whose agent stands still; and the one that carries out hints.
package agent

import (
	"errors"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/member"
	"github.com/gpreempt/gpreempt/preempt/program"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Start prepares preemption at a level (0 highest to 7) and starts the goroutines that carry it out.
// Hooks may be installed after it.
func Start(config configs.Config, level int, images Images, log zerolog.Logger) error {
	if err := configure(config, level, images); err != nil {
		return err
	}
	c := &Core{config: config, job: jobOf(os.Getenv, programInProc()), log: log, agents: map[int]*agent{}, levels: map[int]int{}}
	c.level.Store(int32(level))
	sources := HintSources(config, level)
	if sources != 0 {
		startHints(config, sources)
	}
	if !startThreads(sources != 0, level > 0) {
		return errThreads
	}
	arm(c.countsFromStart())
	c.startMemory(level)
	if why := holdUnwanted(); why != "" && level < lowestLevel && config.Mechanisms.Use(configs.Hold) {
		log.Warn().Str("because", why).Msg("no hold in this process: gaps between kernels give the GPU away")
	}
	go c.run()
	return nil
}

// setLevel is called when a broker gives the process another level on a GPU. The process has one level: the lowest that it has on any.
// Contexts stay as they were prepared: a process that is raised has no hold in contexts that it made before.
func (c *Core) setLevel(gpu, level int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.refused[gpu] {
		level = lowestLevel // what the page of an earlier broker says does not hold any more
	}
	c.levels[gpu] = level
	for _, other := range c.levels {
		level = max(level, other)
	}
	if was := int(c.level.Swap(int32(level))); was == level {
		return
	}
	c.log.Warn().Int("priority", level).Msg("the broker gives this process another level")
	setLevel(c.config, level)
}

// startMemory counts memory of this process, and lets it come and go where it is to.
func (c *Core) startMemory(level int) {
	c.memory = &swapping{mover: newMover(carryOut, grantMemory, hurryMemory, ringBell, cutPinning)}
	setMemory(c.config)
	if c.memory.moves = c.config.Swaps(level) && c.letMove(); c.memory.moves {
		go c.memory.mover.run()
		return
	}
	countMemory()
}

// letMove says whether nothing keeps memory of this process from coming and going.
func (c *Core) letMove() bool {
	if c.config.Mechanisms.Auto {
		switch {
		case besideMPSServer():
			c.stays = configs.FallbackServer
		case unseenRegistrations():
			c.stays = configs.FallbackRegistered
		case gpusVisible(visibleDevices(), gpuNodes) > 1:
			c.stays = configs.FallbackSeveralGPUs
		}
		if c.stays != 0 {
			return false
		}
	}
	err := lane(laneOfMover)
	if err == nil {
		err = startSwap()
	}
	if err != nil {
		c.stays = configs.FallbackNoVMM
		c.log.Warn().Err(err).Msg("memory stays on the GPU")
		return false
	}
	return true
}

// countsFromStart says whether work is counted before there are peers: where turns are taken, the work that a process has
// on the GPU when a peer comes decides whose turn it is. A maximum holds for a process alone, too.
func (c *Core) countsFromStart() bool {
	share := c.config.Share
	return c.levelNow() == lowestLevel && (c.config.Mechanisms.Use(configs.Turns) || share.Max < unlimitedPart || share.MaxBE < unlimitedPart)
}

// sayRefusals tells people what the driver refused while contexts were prepared.
func (c *Core) sayRefusals() {
	for contexts := refusals(); contexts != 0; contexts &= contexts - 1 {
		i := bits.TrailingZeros64(contexts)
		if err := refusedHold(i); err != nil {
			c.log.Warn().Err(err).Msg("the hold kernel could not be loaded: gaps between kernels give the GPU away")
			for _, a := range c.agents {
				a.lacks(configs.FallbackNoHold)
			}
		}
		if err := refusedBLP(i); err != nil {
			c.log.Warn().Err(err).Msg("kernels of a context cannot be stopped")
		}
	}
}

// run attaches GPUs as contexts appear on them, and tells their agents of new TSGs. It writes lines that threads of the program have left
// for the log.
func (c *Core) run() {
	said := map[int]string{} // by GPU: why it has no agent
	lines := linesWritten()  // of the program's threads, written to the log
	for {
		seen := segment.Of.Seen(program.Events)
		startWanted()
		for line, ok := logLine(lines); ok; line, ok = logLine(lines) {
			c.log.Warn().Msg(line)
			lines++ // the next question says that this one is written
		}
		again := time.Duration(0) // until it looks again without an event; 0: it does not
		sooner := func(wait time.Duration) {
			if again == 0 || wait != 0 && wait < again {
				again = wait
			}
		}
		for i := 0; i < maxGPUs && gpuKnown(i); i++ {
			a, known := c.agents[i]
			if !known {
				var err error
				if a, err = c.attach(i); err != nil {
					sooner(heartbeat)
					if c.memory != nil { // nobody makes room: calls are out of memory
						roomChanged(i, 0, false)
						setElsewhere(i, 0)
					}
					if said[i] != err.Error() {
						said[i] = err.Error()
						c.log.Error().Err(err).Msg("no preemption on this GPU; it is tried again every second")
					}
					continue
				}
				c.agents[i] = a
			}
			a.setPlace(underMPS(i))
			sooner(a.changed())
		}
		c.sayRefusals()
		segment.Of.Wait(program.Events, seen, again)
	}
}

// join opens the segment of a GPU and takes a slot.
func (c *Core) join(gpu int) (s *segment.Segment, slot int, err error) {
	base, gid := c.config.Segment.Directory, -1
	dir := segment.Directory(base, os.Getuid())
	if name := c.config.Segment.Group; name != "" {
		if gid, err = segment.GroupID(name); err != nil {
			return nil, -1, err
		}
		dir = segment.GroupDirectory(base, gid)
	}
	if s, err = segment.Open(dir, gpuOf(gpu), gid); err != nil {
		return nil, -1, err
	}
	if err := s.Replaced(); err != nil {
		c.log.Warn().Err(err).Msg("made a new segment: programs that still use the old one are not seen")
	}
	if slot, err = s.Claim(c.levelNow(), programName()); err != nil {
		s.Close()
		return nil, -1, err
	}
	return s, slot, nil
}

// Level is the level that this process gets: the one that it wants, or what a broker lets it have. A process that the broker's policy
// refuses is best effort, or has no role at all: then on is false.
func Level(config configs.Config, wanted int, log zerolog.Logger) (level int, on bool) {
	if config.Segment.Broker == "" {
		return wanted, true
	}
	level, err := member.Level(config.Segment.Broker, wanted)
	refused, off := member.Refused(err)
	if off {
		log.Warn().Err(err).Msg("running without preemption")
		return level, false
	}
	if refused {
		level, err = lowestLevel, nil
	}
	if err == nil && level != wanted {
		log.Warn().Int("wanted", wanted).Int("priority", level).Msg("the broker gives this process another level")
	}
	return level, true
}

// applyRefusal is called when a broker does not take this process. A process that the policy refuses is best effort, also one that has
// begun with a role: what it has made is not unmade.
func (c *Core) applyRefusal(gpu int, err error) {
	if refused, off := member.Refused(err); refused || off {
		c.setRefused(gpu, true)
		c.setLevel(gpu, lowestLevel)
	}
}

// setRefused records whether the policy refuses this process on a GPU. Joining a broker clears it.
func (c *Core) setRefused(gpu int, is bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.refused[gpu] = is
}

// joinBroker joins by a broker. Without one, or where it does not take this process at once, there is no segment: a file of this user's is
// used until it does.
func (c *Core) joinBroker(gpu int) (s *segment.Segment, slot int) {
	if c.config.Segment.Broker == "" {
		return nil, -1
	}
	s, slot, err := member.Join(c.client(gpu))
	if err != nil && !errors.Is(err, member.ErrNone) {
		c.log.Info().Err(err).Msg("not joined the broker at once")
		c.applyRefusal(gpu, err)
	}
	return s, slot
}

// seekBroker joins by a broker as soon as one takes this process.
func (c *Core) seekBroker(gpu int) *member.Sought {
	if c.config.Segment.Broker == "" {
		return nil
	}
	return member.Seek(c.client(gpu), func() { ringBell(gpu) }, func(err error) {
		c.applyRefusal(gpu, err)
		ringBell(gpu)
		c.log.Warn().Err(err).Msg("the broker does not take this process for now: it shares the GPU with programs of this user only")
	})
}

// client is this process as it joins by a broker.
func (c *Core) client(gpu int) member.Options {
	return member.Options{Directory: c.config.Segment.Broker, GPU: gpuOf(gpu), Level: c.levelNow(), Name: programName(), Injected: os.Getenv("GPREEMPT_INJECTED") != "",
		Refused: func(err error) {
			c.applyRefusal(gpu, err)
			ringBell(gpu)
			c.log.Warn().Err(err).Msg("the next broker does not take this process: it is best effort, and those that joined that broker do not know of it")
		}}
}

func (c *Core) attach(gpu int) (*agent, error) {
	if !c.threads[gpu] { // else they are left from an attempt that failed later
		if slices.Contains(c.threads[:], true) { // the first agent's calls share a thread with all that does not wait for long
			_ = lane(laneOf(gpu)) // without its thread that one carries its calls out, too
		}
		if stoppable() && !watchWindows(gpu) {
			return nil, errThreads
		}
		c.threads[gpu] = true
	}
	s, slot := c.joinBroker(gpu)
	var sought *member.Sought
	if s == nil {
		var err error
		if s, slot, err = c.join(gpu); err != nil {
			return nil, err
		}
		sought = c.seekBroker(gpu)
	}
	_, whole := gpuID(gpu)
	a := &agent{core: c, device: driverDevice(gpu), gpu: gpu, whole: whole, segment: s, slot: slot, sought: sought,
		uuids: map[birthKey][16]byte{}, sliceUs: map[tsgKey]uint64{}, probeAfter: firstProbe}
	a.log = c.logOf(gpu, slot)
	if c.memory != nil {
		a.startMemory()
	}
	view, err := s.View()
	if err == nil {
		err = segment.Of.Attach(view, gpu, slot, s.Paged())
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	a.log.Info().Int("priority", c.levelNow()).Msg("attached")
	a.stoppable = stoppable()
	a.setPlace(underMPS(gpu))
	go a.run()
	return a, nil
}

// setPlace says whether contexts on the GPU share the TSG of an MPS server. That changes once at most: RM may show that a client of a server
// has a TSG of its own.
func (a *agent) setPlace(shared bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	is := placeApart
	if shared {
		is = placeShared
	}
	if a.place == is {
		return
	}
	a.place = is
	a.setLacks(configs.FallbackMPS, shared)
	switch {
	case shared && !a.stoppable && a.core.levelNow() != 0:
		a.log.Warn().Msg("under an MPS server all processes share one TSG: best-effort launches wait while latency-critical work runs, but nothing that runs is preempted")
	case !shared && a.core.stays == configs.FallbackServer:
		a.log.Warn().Msg("a control pipe of an MPS server is there, but this process has a TSG of its own: its memory stays on the GPU; remove the pipe, or name swap in mechanisms")
	}
}

func (c *Core) logOf(gpu, slot int) zerolog.Logger {
	return c.log.With().Str("gpu", gpuOf(gpu).String()).Int("slot", slot).Logger()
}

// setArmed makes submissions of this process be reported while any GPU needs it, and says whether they are: what rewrites code or swaps memory
// needs it too.
func (c *Core) setArmed(gpu int, on bool) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.armed[gpu].Store(on)
	for i := range c.armed {
		on = on || c.armed[i].Load()
	}
	return arm(on)
}

func programName() string {
	name, err := os.Readlink("/proc/" + programInProc() + "/exe")
	if err != nil {
		name = segment.Of.Name
	}
	return filepath.Base(name)
}

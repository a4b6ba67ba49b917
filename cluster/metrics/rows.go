package metrics

import (
	"strings"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// Prefix begins all names.
const Prefix = "gpreempt_"

// kind of a metric, by Prometheus' name.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

// row is a metric that is read from the processes of a group.
type row struct {
	name   string // without Prefix
	kind   kind
	help   string
	unit   string   // seconds, bytes; empty: a number
	labels []string // beside those of the group
	most   float64  // a counter grows by this a second at most, per process, in the segment's unit
	cells  []cell
}

// cell is one series of a row, per group.
type cell struct {
	values []string // of the row's labels
	// part of the library that has to be in use, or the series is left out: see parts. Empty: always there.
	part string
	read func(p *segment.Peer, takenNs uint64) uint64 // in the segment's unit: nanoseconds, bytes, a number
}

// A process can do this much in a second, at most. The bounds are there because processes are not trusted.
const (
	oneAtATime = 1e9        // nanoseconds
	byThreads  = 1e9 * 1024 // nanoseconds, of threads that wait at once
	numbers    = 1e8
	amounts    = 1 << 42 // bytes
)

// The parts of the library whose metrics are there once they are in use in a group.
const (
	partBLP       = "blp"
	partMemory    = "memory"
	partObjective = "objective"
	partHint      = "hint " // and the source
)

// parts are the parts of the library in use in a process.
func parts(p *segment.Peer) (all []string) {
	if p.BLP != nil {
		all = append(all, partBLP)
	}
	if p.Memory != nil {
		all = append(all, partMemory)
	}
	if p.Objective != nil {
		all = append(all, partObjective)
	}
	for _, h := range p.Hints {
		all = append(all, partHint+h.Source)
	}
	return all
}

// Readers of the parts of a slot.
func ofSlot(read func(*segment.Counters) uint64) []cell {
	return []cell{{read: func(p *segment.Peer, _ uint64) uint64 { return read(&p.Counters) }}}
}

func ofBLP(read func(*segment.BLP) uint64) []cell {
	return []cell{{part: partBLP, read: blp(read)}}
}

func blp(read func(*segment.BLP) uint64) func(*segment.Peer, uint64) uint64 {
	return func(p *segment.Peer, _ uint64) uint64 {
		if p.BLP == nil {
			return 0
		}
		return read(p.BLP)
	}
}

func heldBack(reason string, read func(*segment.BLP) uint64) cell {
	return cell{[]string{reason}, partBLP, blp(read)}
}

func ofMemory(read func(*segment.Memory) uint64) []cell {
	return []cell{{part: partMemory, read: func(p *segment.Peer, _ uint64) uint64 {
		if p.Memory == nil {
			return 0
		}
		return read(p.Memory)
	}}}
}

func ofObjective(read func(*segment.Objective) uint64) []cell {
	return []cell{{part: partObjective, read: objective(read)}}
}

func objective(read func(*segment.Objective) uint64) func(*segment.Peer, uint64) uint64 {
	return func(p *segment.Peer, _ uint64) uint64 {
		if p.Objective == nil {
			return 0
		}
		return read(p.Objective)
	}
}

// ofIdleObjectives has a cell for each reason why an objective does nothing.
func ofIdleObjectives() (cells []cell) {
	for _, reason := range []struct{ label, state string }{{"slow_steps", "unattainable"}, {"no_steps", "stepless"}, {"late_slots", "late"}, {"rests", "rests"}, {"ranks", "ranks"}} {
		cells = append(cells, cell{[]string{reason.label}, partObjective, objective(func(o *segment.Objective) uint64 { return yes(o.State == reason.state) })})
	}
	return cells
}

// ofSlotCuts has a cell for each reason why a slot ended early.
func ofSlotCuts() (cells []cell) {
	for i, reason := range segment.SlotCuts {
		cells = append(cells, cell{[]string{reason}, partObjective, objective(func(o *segment.Objective) uint64 { return o.Cut[i] })})
	}
	return cells
}

// hint is one value of the hints of a source, with the value of a label where it has one beside the source.
type hint struct {
	label string
	read  func(*segment.Hints) uint64
}

func ofHints(hints ...hint) (cells []cell) {
	for _, source := range configs.HintNames() {
		for _, h := range hints {
			values := []string{source}
			if h.label != "" {
				values = append(values, h.label)
			}
			cells = append(cells, cell{values, partHint + source, func(p *segment.Peer, _ uint64) uint64 {
				for i := range p.Hints {
					if p.Hints[i].Source == source {
						return h.read(&p.Hints[i])
					}
				}
				return 0
			}})
		}
	}
	return cells
}

func yes(is bool) uint64 {
	if is {
		return 1
	}
	return 0
}

// ofProcesses counts processes for which something holds.
func ofProcesses(holds func(*segment.Peer) bool) []cell {
	return []cell{{read: func(p *segment.Peer, _ uint64) uint64 { return yes(holds(p)) }}}
}

// gpuNs is for how long a process had the GPU: with its window open, or of the lowest level with work, on its turn, and no window
// above it open.
func gpuNs(p *segment.Peer, takenNs uint64) uint64 {
	if p.Level == segment.Levels-1 {
		return p.RanNs
	}
	open := uint64(0)
	if p.WindowOpen && p.WindowOpenedNs != 0 && p.WindowOpenedNs < takenNs {
		open = takenNs - p.WindowOpenedNs
	}
	return p.Counters.WindowNs + open
}

func refusals() (cells []cell) {
	for _, reason := range segment.RefusalNames {
		cells = append(cells, cell{[]string{reason}, partBLP, blp(func(b *segment.BLP) uint64 { return b.KernelsRefused[reason] })})
	}
	return cells
}

func holdEvents() (cells []cell) {
	for _, e := range []struct {
		name string
		read func(*segment.Counters) uint64
	}{
		{"released", func(c *segment.Counters) uint64 { return c.HoldsReleased }},
		{"collided", func(c *segment.Counters) uint64 { return c.HoldsCollided }},
		{"expired", func(c *segment.Counters) uint64 { return c.HoldsExpired }},
		{"stalled", func(c *segment.Counters) uint64 { return c.HoldsStalled }},
	} {
		one := ofSlot(e.read)[0]
		one.values = []string{e.name}
		cells = append(cells, one)
	}
	return cells
}

func mechanisms() (cells []cell) {
	for _, row := range configs.MechanismRows {
		cells = append(cells, cell{[]string{row.Name}, "", func(p *segment.Peer, _ uint64) uint64 { return yes(p.InForce&row.Bit != 0) }})
	}
	return cells
}

func fallbacks() (cells []cell) {
	for _, row := range configs.FallbackRows {
		cells = append(cells, cell{[]string{row.Name}, "", func(p *segment.Peer, _ uint64) uint64 { return yes(p.Lacks&row.Bit != 0) }})
	}
	return cells
}

// rows are the metrics, in the order of the documents.
var rows = []row{
	{"processes", gauge, "Processes under the library.", "", nil, 0, ofProcesses(func(*segment.Peer) bool { return true })},
	{"gpu_seconds_total", counter, "Time with a window open (above be), or with work, on its turn, and no window above it open (be).", "seconds", nil, oneAtATime,
		[]cell{{read: gpuNs}}},
	{"busy_seconds_total", counter, "Time with unfinished work on the GPU, counted when it has finished.", "seconds", nil, oneAtATime,
		ofSlot(func(c *segment.Counters) uint64 { return c.BusyNs })},
	{"open_windows", gauge, "Processes whose window is open.", "", nil, 0, ofProcesses(func(p *segment.Peer) bool { return p.WindowOpen })},
	{"windows_total", counter, "Windows opened.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.Windows })},
	{"windows_cut_total", counter, "Windows that outlived hold.max_ms.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.WindowsCut })},
	{"window_duration_seconds", histogram, "How long windows were open.", "seconds", nil, 0, times(func(t *segment.Times) *segment.Histogram[uint64] { return &t.Windows })},
	{"switches_total", counter, "Windows that took the GPU from a lower level that had work: preemptions by a switch.", "", nil, numbers,
		ofSlot(func(c *segment.Counters) uint64 { return c.Switches })},
	{"switch_duration_seconds", histogram, "From the launch of a hold that takes the GPU from a lower level until it was seen to run, every 50 us.", "seconds", nil, 0,
		times(func(t *segment.Times) *segment.Histogram[uint64] { return &t.Switches })},
	{"holds_total", counter, "Holds launched.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.Holds })},
	{"hold_seconds_total", counter, "Time that holds kept the GPU.", "seconds", nil, byThreads, ofSlot(func(c *segment.Counters) uint64 { return c.HoldNs })},
	{"hold_events_total", counter, "Holds that were released for a wait on the context, made room (collided), expired, or stalled.", "", []string{"event"}, numbers, holdEvents()},
	{"gate_waits_total", counter, "Launches that waited for a window of a higher level.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.GateWaits })},
	{"gate_wait_seconds_total", counter, "Time that launches waited for windows of higher levels.", "seconds", nil, byThreads,
		ofSlot(func(c *segment.Counters) uint64 { return c.GateNs })},
	{"turns_total", counter, "Turns on the GPU.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.Turns })},
	{"turn_seconds_total", counter, "Time of the turns on the GPU.", "seconds", nil, oneAtATime, ofSlot(func(c *segment.Counters) uint64 { return c.TurnNs })},
	{"turns_seized_total", counter, "Turns taken from a process that did not hand its turn on.", "", nil, numbers,
		ofSlot(func(c *segment.Counters) uint64 { return c.TurnsSeized })},
	{"boosts_total", counter, "Times that the timeslice was raised for share.min_be.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.Boosts })},
	{"capped_seconds_total", counter, "Time that best-effort processes with work were kept off the GPU by share.max and share.max_be.", "seconds", nil, oneAtATime, ofSlot(func(c *segment.Counters) uint64 { return c.CappedNs })},
	{"timeslice_sets_total", counter, "Times that timeslices were set.", "", nil, numbers, ofSlot(func(c *segment.Counters) uint64 { return c.TimesliceSets })},
	{"suspended_processes", gauge, "Processes whose channels are off the GPU.", "", nil, 0, ofProcesses(func(p *segment.Peer) bool { return p.Suspended })},
	{"mechanism_processes", gauge, "Processes in which a mechanism is in force.", "", []string{"mechanism"}, 0, mechanisms()},
	{"fallback_processes", gauge, "Processes in which something is not in force, by reason.", "", []string{"fallback"}, 0, fallbacks()},

	{"hints_total", counter, "Hints, by what became of them.", "", []string{"source", "outcome"}, numbers, ofHints(
		hint{"hit", func(h *segment.Hints) uint64 { return h.Hit }}, hint{"late", func(h *segment.Hints) uint64 { return h.Late }},
		hint{"wrong", func(h *segment.Hints) uint64 { return h.Wrong }}, hint{"dropped", func(h *segment.Hints) uint64 { return h.Dropped }})},
	{"hint_saved_seconds_total", counter, "Time of switches, or under an MPS server of stops, that overlapped what came before the work.", "seconds", []string{"source"}, oneAtATime,
		ofHints(hint{"", func(h *segment.Hints) uint64 { return h.SavedNs }})},
	{"hint_kept_seconds_total", counter, "GPU time kept before work came, or in vain.", "seconds", []string{"source"}, byThreads,
		ofHints(hint{"", func(h *segment.Hints) uint64 { return h.WaitedNs }})},
	{"hint_spin_seconds_total", counter, "Processor time that hints spun for.", "seconds", nil, byThreads,
		[]cell{{read: func(p *segment.Peer, _ uint64) uint64 { return p.HintSpunNs }}}},
	{"hint_offs_total", counter, "Times that a source of hints was switched off for costing too much.", "", []string{"source"}, numbers,
		ofHints(hint{"", func(h *segment.Hints) uint64 { return h.TimesOff }})},

	{"launches_total", counter, "Launches that can be stopped between blocks.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Launches })},
	{"launches_uncovered_total", counter, "Launches that cannot be stopped between blocks.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Uncovered })},
	{"stops_total", counter, "Times that kernels were stopped: preemptions between blocks.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Stops })},
	{"stop_duration_seconds", histogram, "From a stop until what it cut was launched again.", "seconds", nil, 0,
		times(func(t *segment.Times) *segment.Histogram[uint64] { return &t.Stops })},
	{"drain_duration_seconds", histogram, "From a stop until nothing ran any more.", "seconds", nil, 0,
		times(func(t *segment.Times) *segment.Histogram[uint64] { return &t.Drains })},
	{"launches_cut_total", counter, "Launches that a stop cut.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Cuts })},
	{"blocks_resumed_total", counter, "Blocks that a stop kept from running, and that ran later.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.ResumedBlocks })},
	{"barriers_total", counter, "Operations that waited until what can be stopped was done.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Barriers })},
	{"launches_beside_total", counter, "Launches whose blocks waited for others that a stop had kept from beginning.", "", nil, numbers,
		ofBLP(func(b *segment.BLP) uint64 { return b.Beside })},
	{"launches_narrowed_total", counter, "Launches that went on in a part of the SMs, while their program had stopped their stream.", "", nil, numbers,
		ofBLP(func(b *segment.BLP) uint64 { return b.Narrowed })},
	{"blocks_narrowed_total", counter, "Blocks that ran there.", "", nil, numbers,
		ofBLP(func(b *segment.BLP) uint64 { return b.NarrowBlocks })},
	{"narrow_seconds_total", counter, "Time for which stopped streams went on there.", "seconds", nil, byThreads,
		ofBLP(func(b *segment.BLP) uint64 { return b.NarrowNs })},
	{"launches_held_back_total", counter, "Launches that could not go on there: no room for blocks that run together, work ahead, refused by the driver.", "", []string{"reason"}, numbers,
		[]cell{heldBack("together", func(b *segment.BLP) uint64 { return b.HeldTogether }), heldBack("behind", func(b *segment.BLP) uint64 { return b.HeldBehind }),
			heldBack("refused", func(b *segment.BLP) uint64 { return b.HeldRefused })}},
	{"domains_given_up_total", counter, "Contexts whose kernels are not stopped any more, after an error of the driver or of the library.", "", nil, numbers,
		ofBLP(func(b *segment.BLP) uint64 { return b.GivenUp })},
	{"kernels_total", counter, "Kernels of the modules that were loaded, on each of a process's GPUs.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.KernelsSeen })},
	{"kernels_rewritten_total", counter, "Kernels that can be stopped between blocks.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.KernelsGuarded })},
	{"kernels_refused_total", counter, "Kernels that were not rewritten, by reason.", "", []string{"reason"}, numbers, refusals()},
	{"images_total", counter, "Modules and libraries that were loaded.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.Images })},
	{"images_cached_total", counter, "Modules and libraries that were found in the cache on disk.", "", nil, numbers, ofBLP(func(b *segment.BLP) uint64 { return b.ImagesCached })},
	{"image_load_seconds_total", counter, "Time that loads of modules waited for the rewriting.", "seconds", nil, byThreads, ofBLP(func(b *segment.BLP) uint64 { return b.LoadNs })},

	{"objective_seconds", gauge, "Mean time of a step that objectives allow.", "seconds", nil, 0, ofObjective(func(o *segment.Objective) uint64 { return o.ObjectiveNs })},
	{"objective_step_mean_seconds", gauge, "Mean time of the latest steps of processes that have an objective.", "seconds", nil, 0, ofObjective(func(o *segment.Objective) uint64 { return o.MeanNs })},
	{"objective_unattainable", gauge, "Processes whose objective does nothing. Reasons: steps without lent time take longer, no step's end was found, slots ended late, few steps follow each other. Or it is relative, for one of several ranks.", "", []string{"reason"}, 0, ofIdleObjectives()},
	{"objective_credit_seconds", gauge, "Time by which steps were faster than objectives, which may be lent.", "seconds", nil, 0, ofObjective(func(o *segment.Objective) uint64 { return uint64(max(0, int64(o.CreditNs))) })},
	{"objective_debt_seconds", gauge, "Time by which steps were slower, before anything is lent again.", "seconds", nil, 0, ofObjective(func(o *segment.Objective) uint64 { return uint64(max(0, -int64(o.CreditNs))) })},
	{"objective_steps_total", counter, "Steps of processes that have an objective.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.Steps })},
	{"objective_means_total", counter, "Means over objective.over_steps steps.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.Means })},
	{"objective_missed_means_total", counter, "Of these, means above the objective.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.Over })},
	{"objective_requests_total", counter, "Requests whose first result was seen.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.Requests })},
	{"objective_missed_requests_total", counter, "Of these, requests whose first result came later than objective.first_ms.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.LateRequests })},
	{"objective_slots_total", counter, "Times that lower levels were lent the GPU within the objective.", "", nil, numbers, ofObjective(func(o *segment.Objective) uint64 { return o.Slots })},
	{"objective_lent_seconds_total", counter, "Time for which they were.", "seconds", nil, oneAtATime, ofObjective(func(o *segment.Objective) uint64 { return o.LentNs })},
	{"objective_slots_cut_total", counter, "Slots that ended early, by why: a request arrived, lower levels were idle, a graph is captured, work under way did not end, the objective was taken away.", "", []string{"reason"}, numbers, ofSlotCuts()},

	{"memory_resident_bytes", gauge, "Device memory that is on the GPU and can go.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Resident })},
	{"memory_swapped_bytes", gauge, "Device memory that is in host memory.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Swapped })},
	{"memory_pinned_bytes", gauge, "Device memory that is on the GPU and cannot go.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Pinned })},
	{"memory_cap_bytes", gauge, "The most that the driver lets processes have, where it refuses memory that the GPU has.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Cap })},
	{"memory_wanted_bytes", gauge, "Device memory that calls wait for.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Wanted })},
	{"memory_host_bytes", gauge, "Page-locked host memory.", "bytes", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Host })},
	{"memory_waiting_threads", gauge, "Threads that wait for room, or for what is out.", "", nil, 0, ofMemory(func(m *segment.Memory) uint64 { return m.Waiting })},
	{"memory_waits_total", counter, "Calls that waited for room, or for what was out.", "", nil, numbers, ofMemory(func(m *segment.Memory) uint64 { return m.Waits })},
	{"memory_wait_seconds_total", counter, "Time that calls waited for room, or for what was out.", "seconds", nil, byThreads,
		ofMemory(func(m *segment.Memory) uint64 { return m.WaitNs })},
	{"memory_evictions_total", counter, "Times that memory went to the host.", "", nil, numbers, ofMemory(func(m *segment.Memory) uint64 { return m.Evictions })},
	{"memory_restores_total", counter, "Times that memory came back.", "", nil, numbers, ofMemory(func(m *segment.Memory) uint64 { return m.Restores })},
	{"memory_out_bytes_total", counter, "Bytes copied to the host.", "bytes", nil, amounts, ofMemory(func(m *segment.Memory) uint64 { return m.OutBytes })},
	{"memory_in_bytes_total", counter, "Bytes copied back.", "bytes", nil, amounts, ofMemory(func(m *segment.Memory) uint64 { return m.InBytes })},
	{"memory_out_seconds_total", counter, "Time of copies to the host.", "seconds", nil, byThreads, ofMemory(func(m *segment.Memory) uint64 { return m.OutNs })},
	{"memory_in_seconds_total", counter, "Time of copies back.", "seconds", nil, byThreads, ofMemory(func(m *segment.Memory) uint64 { return m.InNs })},
	{"memory_failures_total", counter, "Evictions and restores that did not come to their end.", "", nil, numbers, ofMemory(func(m *segment.Memory) uint64 { return m.Failures })},
	{"memory_turns_total", counter, "Memory turns.", "", nil, numbers, ofMemory(func(m *segment.Memory) uint64 { return m.Turns })},
	{"memory_turn_seconds_total", counter, "Time of memory turns.", "seconds", nil, oneAtATime, ofMemory(func(m *segment.Memory) uint64 { return m.TurnNs })},
	{"memory_turns_seized_total", counter, "Memory turns taken from a process that did not hand its turn on.", "", nil, numbers,
		ofMemory(func(m *segment.Memory) uint64 { return m.TurnsSeized })},
}

// times are the cells of a histogram: the sum, then the buckets.
func times(of func(*segment.Times) *segment.Histogram[uint64]) (cells []cell) {
	cells = append(cells, cell{read: func(p *segment.Peer, _ uint64) uint64 { return of(&p.Times).SumNs }})
	for i := range segment.TimeBuckets {
		cells = append(cells, cell{read: func(p *segment.Peer, _ uint64) uint64 { return of(&p.Times).Buckets[i] }})
	}
	return cells
}

// limit is how much a cell grows a second at most.
func (r *row) limit(cell int) float64 {
	switch {
	case r.kind != histogram:
		return r.most
	case cell == 0:
		return byThreads
	}
	return numbers
}

// inUnit is a sum in the unit of the metric.
func (r *row) inUnit(sum uint64) float64 {
	if r.unit == "seconds" {
		return float64(sum) / 1e9
	}
	return float64(sum)
}

// Description is what documents say of a metric.
type Description struct {
	Name, Type, Unit, Help string
	Labels                 []string
}

// Descriptions are of all metrics, in order.
func Descriptions() (all []Description) {
	for _, r := range rows {
		all = append(all, Description{Prefix + r.name, string(r.kind), r.unit, strings.TrimSuffix(r.help, "."), append(groupLabels(), r.labels...)})
	}
	all = append(all, outsiderDescriptions()...)
	all = append(all, brokerDescriptions()...)
	return append(all,
		Description{Prefix + "segment_readable", string(gauge), "", strings.TrimSuffix(readableHelp, "."), []string{"uuid"}},
		Description{Prefix + "build_info", string(gauge), "", strings.TrimSuffix(infoHelp, "."), []string{"version"}})
}

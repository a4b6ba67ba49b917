// Package metrics makes Prometheus metrics of what the segments say. It sums what the processes of a group counted: those of one level,
// container and pod on one GPU. No metric is of a process, whose pid and name would make series without end.
//
// The collector does not trust processes. It takes only growth of a counter, and no more of it than the process can have made since it
// started. So the sums never fall, and they keep what a process that has ended counted.
package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	// MostGroups of a GPU have series of their own. Further groups are summed up as Other.
	MostGroups = 256
	// MostGPUs have series of their own. A client of a broker names its GPU itself.
	MostGPUs = 128
	// Other is the namespace, pod and container of groups that are too many, and the UUID of GPUs that are.
	Other = "other"
	// forgetAfter a group's last process has ended, its series go. Prometheus looks back as far (5 min).
	forgetAfter = 5 * time.Minute
	// mostAbsent processes of a segment are remembered that are not there: one that comes back goes on counting where it was.
	mostAbsent = 256
)

// Group is whose a process is. All are empty where it is in no container.
type Group struct{ Namespace, Pod, Container string }

// Finder says whose a process is. It is asked once about each.
type Finder func(p *segment.Peer) Group

// Collector is a prometheus.Collector. Its methods may be called by several goroutines.
type Collector struct {
	read    func() ([]segment.Snapshot, error)
	find    Finder
	version string
	started time.Time
	clock   func() uint64 // as segment.Now

	descs          []*prometheus.Desc // of rows
	readable, info *prometheus.Desc

	mutex    sync.Mutex
	lastNs   uint64              // of the last look
	segments map[string]*watched // by path
	groups   map[groupKey]*group
}

// watched is a segment, for forgetAfter if it is not there.
type watched struct {
	gpu             string
	there, readable bool
	lastNs          uint64 // when it was read last
	goneNs          uint64 // since when it is not there
	processes       map[processKey]*process
}

// processKey stays if a process moves to another slot, or to another memory.
type processKey struct {
	pid       int32
	startedNs uint64
}

type process struct {
	of       Group
	sinceNs  uint64   // it may have counted since then
	taken    []uint64 // of each cell
	absentNs uint64   // since when it has no slot; 0: it has one
}

type groupKey struct {
	uuid, level string
	Group
}

type group struct {
	sums      []uint64 // counters, by cell; of gauges what the last look saw
	parts     map[string]bool
	processes int // alive at the last look
	endedNs   uint64
	collected bool // since it ended
}

const (
	readableHelp = "1 where the GPU's segment could be read, 0 where not."
	infoHelp     = "1, with the version."
)

func groupLabels() []string { return []string{"uuid", "level", "namespace", "pod", "container"} }

// firstCell is where a row's cells begin among all.
var firstCell = func() []int {
	at := []int{0}
	for _, r := range rows {
		at = append(at, at[len(at)-1]+len(r.cells))
	}
	return at
}()

// New makes a Collector of what read reads. find may be nil: then all processes are in no container.
func New(read func() ([]segment.Snapshot, error), find Finder, version string) *Collector {
	c := &Collector{read: read, find: find, version: version, started: time.Now(), clock: segment.Now, segments: map[string]*watched{}, groups: map[groupKey]*group{}}
	for _, r := range rows {
		c.descs = append(c.descs, prometheus.NewDesc(Prefix+r.name, r.help, append(groupLabels(), r.labels...), nil))
	}
	c.readable = prometheus.NewDesc(Prefix+"segment_readable", readableHelp, []string{"uuid"}, nil)
	c.info = prometheus.NewDesc(Prefix+"build_info", infoHelp, []string{"version"}, nil)
	return c
}

// Look reads the segments and adds their counts. It is to be called about once a second, so that little is lost of a process whose slot
// another one takes.
func (c *Collector) Look() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.look()
}

func (c *Collector) look() error {
	snapshots, err := c.read()
	if err != nil {
		return err
	}
	for _, g := range c.groups {
		g.startLook()
	}
	for _, w := range c.segments {
		w.there = false
	}
	now := max(c.lastNs, c.clock())
	for i := range snapshots {
		c.take(&snapshots[i])
		now = max(now, snapshots[i].TakenNs)
	}
	for path, w := range c.segments {
		switch {
		case w.there:
			w.goneNs = 0
		case w.goneNs == 0:
			w.goneNs = max(now, 1)
		case now-w.goneNs > uint64(forgetAfter):
			delete(c.segments, path)
		}
	}
	c.lastNs = now
	c.forget(now)
	return nil
}

// take adds the counts of a segment's processes.
func (c *Collector) take(s *segment.Snapshot) {
	w := c.segments[s.Path]
	if w == nil {
		w = &watched{gpu: c.nameOf(s.GPU), lastNs: c.lastNs, processes: map[processKey]*process{}}
		c.segments[s.Path] = w
	}
	w.there = true
	if w.readable = s.Error == ""; !w.readable {
		return
	}
	seen := map[processKey]*process{}
	for i := range s.Peers {
		p := &s.Peers[i]
		c.takeProcess(w, seen, p, s.TakenNs, true)
	}
	for i := range s.Gone {
		p := &s.Gone[i]
		key := processKey{p.Pid, p.StartedNs}
		// Of one that was never seen alive it is not known whose it was, unless a broker says it; nor, of one that ended before, whether
		// it was counted.
		if seen[key] == nil && (w.processes[key] != nil || w.lastNs != 0 && p.StartedNs > w.lastNs) {
			c.takeProcess(w, seen, p, s.TakenNs, false)
		}
	}
	w.remember(seen, s.TakenNs)
	w.lastNs = s.TakenNs
}

// remember keeps the processes that were seen, and of the others the last that had a slot. A process that lost its slot and joins anew
// still has its former counts.
func (w *watched) remember(seen map[processKey]*process, now uint64) {
	var absent []processKey
	for key, of := range w.processes {
		switch {
		case seen[key] != nil:
			of.absentNs = 0
			continue
		case of.absentNs == 0:
			of.absentNs = max(now, 1)
		}
		absent = append(absent, key)
	}
	slices.SortFunc(absent, func(a, b processKey) int { // those that left last come first
		return cmp.Compare(w.processes[b].absentNs, w.processes[a].absentNs)
	})
	for _, key := range absent[:min(len(absent), mostAbsent)] {
		seen[key] = w.processes[key]
	}
	w.processes = seen
}

// nameOf is the UUID of a GPU, or Other where there are too many.
func (c *Collector) nameOf(gpu string) string {
	known := map[string]bool{}
	for _, w := range c.segments {
		known[w.gpu] = true
	}
	for key := range c.groups {
		known[key.uuid] = true
	}
	if !known[gpu] && len(known) >= MostGPUs {
		return Other
	}
	return gpu
}

func (c *Collector) takeProcess(w *watched, seen map[processKey]*process, p *segment.Peer, takenNs uint64, live bool) {
	key := processKey{p.Pid, p.StartedNs}
	of := w.processes[key]
	if of == nil {
		of = seen[key] // a slot that says it is another's
	}
	if of == nil {
		// It may have counted since it started, but not before the segment was read without it.
		of = &process{sinceNs: max(min(p.StartedNs, takenNs), w.lastNs), taken: make([]uint64, firstCell[len(rows)])}
		if (live || p.Cgroup != "") && c.find != nil {
			found := c.find(p)
			of.of = Group{label(found.Namespace), label(found.Pod), label(found.Container)}
		}
	}
	seen[key] = of
	g := c.groupOf(groupKey{w.gpu, levelOf(p), of.of})
	g.processes += int(yes(live))
	for _, part := range parts(p) {
		g.parts[part] = true
	}
	seconds := float64(takenNs-min(takenNs, of.sinceNs)) / 1e9
	for i := range rows {
		for j := range rows[i].cells {
			at, value := firstCell[i]+j, rows[i].cells[j].read(p, takenNs)
			if rows[i].kind == gauge {
				if live {
					g.sums[at] = plus(g.sums[at], value)
				}
				continue
			}
			if most := rows[i].limit(j) * seconds; float64(value) > most {
				value = uint64(most)
			}
			if value > of.taken[at] {
				g.sums[at] = plus(g.sums[at], value-of.taken[at])
				of.taken[at] = value
			}
		}
	}
}

func label(value string) string { return strings.ToValidUTF8(value, "?") }

// plus does not overflow.
func plus(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

func levelOf(p *segment.Peer) string {
	if p.Level >= segment.Levels {
		return "unknown"
	}
	return p.Role
}

// groupOf is the group of a key, or Other's where there are too many.
func (c *Collector) groupOf(key groupKey) *group {
	if g := c.groups[key]; g != nil {
		return g
	}
	if key.Group != (Group{Other, Other, Other}) && c.own(key.uuid) >= MostGroups && !c.dropOne(key.uuid) {
		return c.groupOf(groupKey{key.uuid, key.level, Group{Other, Other, Other}})
	}
	g := &group{sums: make([]uint64, firstCell[len(rows)]), parts: map[string]bool{}}
	c.groups[key] = g
	return g
}

// own is how many groups of a GPU have series of their own.
func (c *Collector) own(uuid string) (n int) {
	for key := range c.groups {
		if key.uuid == uuid && key.Group != (Group{Other, Other, Other}) {
			n++
		}
	}
	return n
}

// dropOne makes room: the group goes whose last process ended first, of those whose end somebody has seen.
func (c *Collector) dropOne(uuid string) bool {
	var oldest groupKey
	endedNs := uint64(0)
	for key, g := range c.groups {
		if key.uuid == uuid && g.mayGo(key) && (endedNs == 0 || g.endedNs < endedNs) {
			oldest, endedNs = key, g.endedNs
		}
	}
	delete(c.groups, oldest)
	return endedNs != 0
}

// mayGo says whether a group of a container is over, and its sums were collected.
func (g *group) mayGo(key groupKey) bool {
	return key.Group != (Group{}) && key.Group != (Group{Other, Other, Other}) && g.endedNs != 0 && g.collected
}

func (g *group) startLook() {
	g.processes = 0
	for i, r := range rows {
		if r.kind == gauge {
			clear(g.sums[firstCell[i]:firstCell[i+1]])
		}
	}
}

// forget drops groups that have been over for long. On a GPU that has no segment any more, it drops every such group.
func (c *Collector) forget(now uint64) {
	there := map[string]bool{}
	for _, w := range c.segments {
		there[w.gpu] = true
	}
	for key, g := range c.groups {
		switch {
		case g.processes > 0:
			g.endedNs, g.collected = 0, false
		case g.endedNs == 0:
			g.endedNs = max(now, 1)
		case (g.mayGo(key) || g.collected && !there[key.uuid]) && now-min(now, g.endedNs) > uint64(forgetAfter):
			delete(c.groups, key)
		}
	}
}

// Describe is prometheus.Collector's.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		to <- desc
	}
	to <- c.readable
	to <- c.info
}

// Collect is prometheus.Collector's. It looks first.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if err := c.look(); err != nil {
		to <- prometheus.NewInvalidMetric(c.readable, err)
		return
	}
	to <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, label(c.version))
	readable := map[string]bool{}
	for _, w := range c.segments {
		if !w.there {
			continue
		}
		before, known := readable[w.gpu]
		readable[w.gpu] = w.readable && (before || !known)
	}
	for _, gpu := range slices.Sorted(maps.Keys(readable)) {
		to <- prometheus.MustNewConstMetric(c.readable, prometheus.GaugeValue, float64(yes(readable[gpu])), gpu)
	}
	for key, g := range c.groups {
		g.collected = g.endedNs != 0
		c.collectGroup(to, key, g)
	}
}

func (c *Collector) collectGroup(to chan<- prometheus.Metric, key groupKey, g *group) {
	labels := []string{key.uuid, key.level, key.Namespace, key.Pod, key.Container}
	for i, r := range rows {
		sums := g.sums[firstCell[i]:firstCell[i+1]]
		if r.kind == histogram {
			c.collectTimes(to, c.descs[i], sums, labels)
			continue
		}
		as := prometheus.CounterValue
		if r.kind == gauge {
			as = prometheus.GaugeValue
		}
		for j, of := range r.cells {
			if of.part == "" || g.parts[of.part] {
				to <- prometheus.MustNewConstMetric(c.descs[i], as, r.inUnit(sums[j]), slices.Concat(labels, of.values)...)
			}
		}
	}
}

// collectTimes gives a histogram, both with buckets and as a native one, unless nothing was timed.
func (c *Collector) collectTimes(to chan<- prometheus.Metric, desc *prometheus.Desc, sums []uint64, labels []string) {
	const schema, smallest = 0, 1.0 / (1 << segment.FirstBucket) // bounds are powers of 2
	seconds, counts := float64(sums[0])/1e9, sums[1:]
	upTo, native, total := map[float64]uint64{}, map[int]int64{}, uint64(0)
	bound := smallest
	for i, n := range counts {
		total += n
		if i > 0 && n > 0 { // the first bucket is the one of zero, those that are longer than the last bound are said to be in the next
			native[i-segment.FirstBucket] = int64(n)
		}
		if i < len(counts)-1 {
			upTo[bound] = total
			bound *= 2
		}
	}
	if total == 0 {
		return
	}
	sparse, err := prometheus.NewConstNativeHistogram(desc, total, seconds, native, nil, counts[0], schema, smallest, c.started, labels...)
	if err != nil {
		to <- prometheus.NewInvalidMetric(desc, fmt.Errorf("native histogram: %w", err))
		return
	}
	to <- both{sparse, prometheus.MustNewConstHistogram(desc, total, seconds, upTo, labels...)}
}

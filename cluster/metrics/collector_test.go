package metrics

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

const (
	gpu    = "GPU-ab000000-0000-0000-0000-000000000001"
	second = uint64(1e9)
)

// world is the contents of the segments, and the groups of processes.
type world struct {
	t         *testing.T
	snapshots []segment.Snapshot
	err       error
	of        map[int32]Group
	nowNs     uint64
	*Collector
}

func newWorld(t *testing.T, peers ...segment.Peer) *world {
	w := &world{t: t, of: map[int32]Group{}, nowNs: 100 * second, snapshots: []segment.Snapshot{{GPU: gpu, Path: "a.seg", TakenNs: 100 * second, Peers: peers}}}
	w.Collector = New(func() ([]segment.Snapshot, error) { return w.snapshots, w.err }, func(p *segment.Peer) Group { return w.of[p.Owner] }, "v1")
	w.clock = func() uint64 { return w.nowNs }
	return w
}

// later lets time pass.
func (w *world) later(ns uint64) *world {
	w.nowNs += ns
	for i := range w.snapshots {
		w.snapshots[i].TakenNs += ns
	}
	return w
}

// gathered are all series, as name{label="value",...} without labels that are empty, with their values. The value of a histogram is its
// sum.
func (w *world) gathered() map[string]float64 {
	w.t.Helper()
	all := map[string]float64{}
	for name, family := range w.families() {
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetValue() != "" && l.GetName() != "uuid" {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			all[strings.TrimPrefix(name, Prefix)+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	return all
}

func (w *world) families() map[string]*dto.MetricFamily {
	w.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Collector)
	list, err := registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]*dto.MetricFamily{}
	for _, family := range list {
		all[family.GetName()] = family
	}
	return all
}

// says checks some series; want of NaN: it is not there.
func (w *world) says(when string, want map[string]float64) {
	w.t.Helper()
	all := w.gathered()
	for name, value := range want {
		if got, there := all[name]; there == math.IsNaN(value) || there && math.Abs(got-value) > 1e-9 {
			w.t.Errorf("%s: %s = %v (%v), want %v", when, name, got, there, value)
		}
	}
}

// everything is a process that uses all parts of the library.
func everything() segment.Peer {
	p := segment.Peer{Pid: 7, Owner: 7, Level: 0, Role: "lc", Alive: true, StartedNs: second, InForce: configs.Timeslice, Lacks: configs.FallbackNoHold,
		BLP: &segment.BLP{KernelsRefused: map[string]uint64{"form": 2}}, Memory: &segment.Memory{}, Objective: &segment.Objective{}}
	for _, source := range configs.HintNames() {
		p.Hints = append(p.Hints, segment.Hints{Source: source, HintCounters: segment.HintCounters[uint64]{Given: 1}})
	}
	for _, h := range []*segment.Histogram[uint64]{&p.Times.Windows, &p.Times.Switches, &p.Times.Drains, &p.Times.Stops} {
		h.Buckets[5], h.SumNs = 1, 200_000
	}
	return p
}

// Names, units and help are as Prometheus wants them, every metric that is described is there, and no other.
func TestLint(t *testing.T) {
	w := newWorld(t, everything())
	problems, err := testutil.CollectAndLint(w.Collector)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families := w.families()
	apart := append(outsiderDescriptions(), brokerDescriptions()...) // of collectors of their own
	for _, d := range Descriptions() {
		if slices.ContainsFunc(apart, func(a Description) bool { return a.Name == d.Name }) {
			continue
		}
		family := families[d.Name]
		if family == nil {
			t.Errorf("%s is not there", d.Name)
			continue
		}
		delete(families, d.Name)
		if got := strings.ToLower(family.GetType().String()); got != d.Type || family.GetHelp() != d.Help+"." {
			t.Errorf("%s is a %s: %s; described as a %s: %s", d.Name, got, family.GetHelp(), d.Type, d.Help)
		}
		if d.Unit != "" && !strings.HasSuffix(strings.TrimSuffix(d.Name, "_total"), "_"+d.Unit) || strings.HasSuffix(d.Name, "_total") != (d.Type == "counter") {
			t.Errorf("%s is a %s in %q", d.Name, d.Type, d.Unit)
		}
		for _, l := range family.Metric[0].Label {
			if !strings.Contains(" "+strings.Join(d.Labels, " ")+" ", " "+l.GetName()+" ") {
				t.Errorf("%s has the label %s, which is not described", d.Name, l.GetName())
			}
		}
	}
	for name := range families {
		t.Errorf("%s is not described", name)
	}
}

// elsewhere are fields of the segment that no metric is read from, and why.
var elsewhere = map[string]string{
	"DrainNs": "gpreempt_drain_duration_seconds", "DrainMaxNs": "gpreempt_drain_duration_seconds",
	"Given": "the sum of what becomes of hints",
	"Pins":  "of a process", "Reserve": "of a process", "Other": "of a process, and the driver's", "State": "of a process",
	"StateSinceNs": "a time", "IdleSinceNs": "a time", "IdleAfterNs": "a setting", "WantedSinceNs": "a time", "OutRate": "learnt", "InRate": "learnt",
	"SwapNs": "learnt", "QuantumNs": "learnt", "Answered": "for the command",
	"Claimed": "the sum of what it has and what its calls want",
}

// Each counter of the segment is in a metric.
func TestEveryCounterIsThere(t *testing.T) {
	seen := func(p *segment.Peer) bool {
		for _, r := range rows {
			for _, c := range r.cells {
				if c.read(p, second) >= 12345 {
					return true
				}
			}
		}
		return false
	}
	check := func(part any, p *segment.Peer) {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			if v.Field(i).Kind() != reflect.Uint64 {
				continue
			}
			v.Field(i).SetUint(12345)
			name := v.Type().Field(i).Name
			if there := seen(p); there == (elsewhere[name] != "") {
				t.Errorf("%s.%s: in a metric: %v; %q", v.Type().Name(), name, there, elsewhere[name])
			}
			v.Field(i).SetUint(0)
		}
	}
	p := segment.Peer{BLP: &segment.BLP{}, Memory: &segment.Memory{}, Hints: []segment.Hints{{Source: configs.HintNames()[0]}}}
	check(&p.Counters, &p)
	check(p.BLP, &p)
	check(&p.BLP.StopCounters, &p)
	check(&p.Memory.MemoryCounters, &p)
	check(&p.Hints[0].HintCounters, &p)
}

// The counts of processes of one container are summed, and stay when these processes end.
func TestSumsStay(t *testing.T) {
	a := segment.Peer{Pid: 1, Owner: 11, Level: 0, Role: "lc", StartedNs: 90 * second, Counters: segment.Counters{Windows: 5, WindowNs: second}, WindowOpen: true, WindowOpenedNs: 98 * second}
	b := segment.Peer{Pid: 2, Owner: 12, Level: 0, Role: "lc", StartedNs: 91 * second, Counters: segment.Counters{Windows: 7}}
	c := segment.Peer{Pid: 3, Owner: 13, Level: 7, Role: "be", StartedNs: 91 * second, RanNs: 4 * second}
	w := newWorld(t, a, b, c)
	w.of = map[int32]Group{11: {"web", "serve", "main"}, 12: {"web", "serve", "main"}, 13: {}}
	const of = `container="main",level="lc",namespace="web",pod="serve"`
	w.says("at first", map[string]float64{"windows_total{" + of + "}": 12, "gpu_seconds_total{" + of + "}": 3, "processes{" + of + "}": 2, "open_windows{" + of + "}": 1,
		`gpu_seconds_total{level="be"}`: 4, `processes{level="be"}`: 1, "memory_resident_bytes{" + of + "}": math.NaN(), "stops_total{" + of + "}": math.NaN(),
		`segment_readable{}`: 1, `build_info{version="v1"}`: 1})

	s := &w.snapshots[0]
	s.Peers, s.Gone = []segment.Peer{a, c}, []segment.Peer{b}
	s.Gone[0].Counters.Windows = 9 // it counted on until it ended
	w.later(second).says("one ended", map[string]float64{"windows_total{" + of + "}": 14, "processes{" + of + "}": 1})
	w.later(second).says("its slot is still there", map[string]float64{"windows_total{" + of + "}": 14})
	s.Gone = nil
	w.later(second).says("its slot is another's", map[string]float64{"windows_total{" + of + "}": 14, "gpu_seconds_total{" + of + "}": 6})

	s.Peers[0].Counters.Windows = 2
	w.says("a counter fell", map[string]float64{"windows_total{" + of + "}": 14})
	s.Peers[0].Counters.Windows = 6
	w.says("it rose again", map[string]float64{"windows_total{" + of + "}": 15})

	s.Error, s.Peers = "corrupt", nil
	w.later(second).says("not readable", map[string]float64{"windows_total{" + of + "}": 15, `segment_readable{}`: 0})
	s.Error, s.Peers = "", []segment.Peer{a}
	s.Peers[0].Counters.Windows = 6
	w.later(second).says("readable again", map[string]float64{"windows_total{" + of + "}": 15, `segment_readable{}`: 1})

	// Another slot, or another memory, of the same process.
	s.Peers[0].Slot = 9
	s.Gone = []segment.Peer{a}
	w.later(second).says("moved", map[string]float64{"windows_total{" + of + "}": 15, "processes{" + of + "}": 1})
}

// A process that came and went between two looks is counted, as nobody's; one that ended before the first look is not.
func TestShortLives(t *testing.T) {
	before := segment.Peer{Pid: 1, Role: "lc", StartedNs: 90 * second, Counters: segment.Counters{Windows: 5}}
	w := newWorld(t)
	w.snapshots[0].Gone = []segment.Peer{before}
	w.says("at first", map[string]float64{`windows_total{level="lc"}`: math.NaN()})
	between := segment.Peer{Pid: 2, Role: "lc", StartedNs: 100*second + second/2, Counters: segment.Counters{Windows: 3}}
	w.snapshots[0].Gone = []segment.Peer{before, between}
	for range 2 {
		w.later(second).says("later", map[string]float64{`windows_total{level="lc"}`: 3, `processes{level="lc"}`: 0})
	}
	known := between // of a broker it is known whose it was
	known.Pid, known.StartedNs, known.Cgroup = 3, w.nowNs+1, "/known"
	w.find = func(p *segment.Peer) Group { return Group{Container: p.Cgroup} }
	w.snapshots[0].Gone = append(w.snapshots[0].Gone, known)
	w.later(second).says("known", map[string]float64{`windows_total{container="/known",level="lc"}`: 3, `windows_total{level="lc"}`: 3})
}

// A process cannot have counted more than time allows, whatever it writes.
func TestLies(t *testing.T) {
	liar := segment.Peer{Pid: 1, Owner: 1, Level: math.MaxUint32, Role: "4294967295", StartedNs: 90 * second, WindowOpen: true, WindowOpenedNs: 1, BLP: &segment.BLP{}, Memory: &segment.Memory{}}
	liar.Counters = segment.Counters{Windows: math.MaxUint64, WindowNs: math.MaxUint64 / 2, GateNs: math.MaxUint64}
	liar.Memory.OutBytes, liar.Memory.Resident = math.MaxUint64, math.MaxUint64
	liar.Times.Windows.SumNs = math.MaxUint64
	for i := range liar.Times.Windows.Buckets {
		liar.Times.Windows.Buckets[i] = math.MaxUint64
	}
	other := liar
	other.Pid = 2
	w := newWorld(t, liar, other)
	const times = segment.TimeBuckets * 2 * 10 * numbers
	w.says("at first", map[string]float64{`gpu_seconds_total{level="unknown"}`: 20, `windows_total{level="unknown"}`: 20 * numbers, `gate_wait_seconds_total{level="unknown"}`: 20 * 1024})
	if h := w.families()[Prefix+"window_duration_seconds"].Metric[0].Histogram; h.GetSampleCount() != times || h.GetSampleSum() != 20*1024 {
		t.Errorf("%d windows of %v s, want %v", h.GetSampleCount(), h.GetSampleSum(), uint64(times))
	}
	// It says it is another process, which has been there for long: then it was there at the last look.
	w.snapshots[0].Peers[0].StartedNs = 1
	w.later(second).says("as another", map[string]float64{`gpu_seconds_total{level="unknown"}`: 22})
	w.snapshots[0].Peers[0].StartedNs = math.MaxUint64
	w.later(second).says("from the future", map[string]float64{`gpu_seconds_total{level="unknown"}`: 23})
}

// Ten thousand pods over a day have no more series than there may be, and the last ones have their own.
func TestManyPods(t *testing.T) {
	w := newWorld(t)
	s := &w.snapshots[0]
	const together = 5
	most := 0
	for i := range int32(10_000) {
		s.Peers = append(s.Peers, segment.Peer{Pid: i, Owner: i, Level: 7, Role: "be", StartedNs: s.TakenNs, Counters: segment.Counters{Turns: 1}})
		if len(s.Peers) > together {
			s.Peers = s.Peers[1:]
		}
		w.of[i] = Group{"jobs", fmt.Sprint("pod-", i), "main"}
		w.later(86_400 * second / 10_000)
		if err := w.Look(); err != nil {
			t.Fatal(err)
		}
		if i%35 == 0 { // 5 min
			w.Collect(drain(t))
		}
		most = max(most, len(w.groups))
	}
	if most > MostGroups+1 || most <= together {
		t.Errorf("%d groups at most", most)
	}
	all := w.gathered()
	for i := 9_999; i > 9_999-together; i-- {
		if all[fmt.Sprintf(`turns_total{container="main",level="be",namespace="jobs",pod="pod-%d"}`, i)] != 1 {
			t.Errorf("pod %d is not there", i)
		}
	}
	if _, there := all[`turns_total{container="main",level="be",namespace="jobs",pod="pod-1"}`]; there {
		t.Error("the first pod is still there")
	}
}

// More pods at once than may have series share one series; each level has its own.
func TestTooManyPods(t *testing.T) {
	w := newWorld(t)
	s := &w.snapshots[0]
	for i := range int32(MostGroups + 20) {
		role := "be"
		if i%2 == 0 {
			role = "1"
		}
		s.Peers = append(s.Peers, segment.Peer{Pid: i, Owner: i, Level: 7, Role: role, StartedNs: second, Counters: segment.Counters{Turns: 1}})
		w.of[i] = Group{"jobs", fmt.Sprint("pod-", i), "main\xff"}
	}
	const other = `container="other",level=%q,namespace="other",pod="other"`
	w.says("all at once", map[string]float64{"turns_total{" + fmt.Sprintf(other, "be") + "}": 10, "turns_total{" + fmt.Sprintf(other, "1") + "}": 10,
		`turns_total{container="main?",level="1",namespace="jobs",pod="pod-0"}`: 1})
	if len(w.groups) != MostGroups+2 {
		t.Errorf("%d groups", len(w.groups))
	}
	// One of them ends, and there is room for another once that was collected: for the first that asks.
	s.Peers = s.Peers[1:]
	w.later(second).gathered()
	s.Peers[MostGroups-1].Counters.Turns = 4
	w.later(second).says("with room", map[string]float64{fmt.Sprintf(`turns_total{container="main?",level="1",namespace="jobs",pod="pod-%d"}`, MostGroups): 3})
	if len(w.groups) != MostGroups+2 {
		t.Errorf("%d groups later", len(w.groups))
	}
}

// The series of a container go some minutes after its last process, once somebody has seen how it ended. The series without a container
// stay.
func TestForgotten(t *testing.T) {
	const of, none = `turns_total{container="main",level="be",namespace="jobs",pod="pod"}`, `turns_total{level="be"}`
	p := segment.Peer{Pid: 1, Owner: 1, Level: 7, Role: "be", StartedNs: second, Counters: segment.Counters{Turns: 3}}
	q := p
	q.Pid, q.Owner = 2, 2
	w := newWorld(t, p, q)
	w.of[1] = Group{"jobs", "pod", "main"}
	w.says("at first", map[string]float64{of: 3, none: 3})
	w.snapshots[0].Peers = nil
	for range 3 { // nobody collects
		if err := w.later(uint64(forgetAfter)).Look(); err != nil {
			t.Fatal(err)
		}
	}
	w.later(second).says("at the end", map[string]float64{of: 3, none: 3})
	w.later(second).says("later", map[string]float64{of: math.NaN(), none: 3}) // more than forgetAfter since it ended

	w.snapshots[0].Peers = []segment.Peer{p}
	w.snapshots[0].Peers[0].StartedNs = w.snapshots[0].TakenNs
	w.later(second).says("it is back", map[string]float64{of: 3})
	w.snapshots[0].Peers = nil
	w.later(second).says("and ends", map[string]float64{of: 3})
	w.later(uint64(forgetAfter)-1).says("soon after", map[string]float64{of: 3})
	w.later(2).says("too long ago", map[string]float64{of: math.NaN()})
}

// A process that loses its slot and joins anew, as one that was stopped, is counted once. Its GPU may have had no segment meanwhile.
func TestComesBack(t *testing.T) {
	p := segment.Peer{Pid: 1, Owner: 1, Level: 7, Role: "be", StartedNs: 90 * second, Counters: segment.Counters{Turns: 3}}
	w := newWorld(t, p)
	w.says("at first", map[string]float64{`turns_total{level="be"}`: 3})
	there := w.snapshots
	for i, without := range [][]segment.Snapshot{{{GPU: gpu, Path: "a.seg", TakenNs: 100 * second}}, nil} {
		w.snapshots = without
		w.later(second).says("it is away", map[string]float64{`turns_total{level="be"}`: float64(3 + i), `processes{level="be"}`: 0})
		w.snapshots = there
		there[0].TakenNs = w.nowNs
		there[0].Peers[0].Counters.Turns++
		w.later(second).says("it is back", map[string]float64{`processes{level="be"}`: 1})
	}
	w.says("at the end", map[string]float64{`turns_total{level="be"}`: 5})

	// No more are remembered than may be, and those that left last are.
	for i := range int32(2 * mostAbsent) {
		there[0].Peers = []segment.Peer{{Pid: 100 + i, Role: "be", Level: 7, StartedNs: w.nowNs, Counters: segment.Counters{Turns: 1}}}
		if err := w.later(second).Look(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.segments["a.seg"].processes); n != mostAbsent+1 {
		t.Errorf("%d processes are remembered", n)
	}
	w.says("many", map[string]float64{`turns_total{level="be"}`: 5 + 2*mostAbsent})
	there[0].Peers[0].Pid--
	there[0].Peers[0].StartedNs -= second
	w.later(second).says("the last but one is back", map[string]float64{`turns_total{level="be"}`: 5 + 2*mostAbsent})
}

// All series of a GPU go that is not there any more, and there are no more GPUs than may be, whatever clients call theirs.
func TestGPUsGo(t *testing.T) {
	w := newWorld(t, segment.Peer{Pid: 1, Level: 7, Role: "be", StartedNs: second, Counters: segment.Counters{Turns: 3}})
	w.says("at first", map[string]float64{`turns_total{level="be"}`: 3, "segment_readable{}": 1})
	w.snapshots = nil
	w.later(second).says("it has gone", map[string]float64{`turns_total{level="be"}`: 3, "segment_readable{}": math.NaN()})
	w.later(uint64(forgetAfter)+second).says("its segment is forgotten", map[string]float64{"segment_readable{}": math.NaN()})
	w.later(second).says("later", map[string]float64{`turns_total{level="be"}`: math.NaN()})
	if len(w.segments)+len(w.groups) != 0 {
		t.Errorf("left: %v, %v", w.segments, w.groups)
	}
	for i := range 3 * MostGPUs {
		name := fmt.Sprint("GPU-", i)
		w.snapshots = []segment.Snapshot{{GPU: name, Path: name, TakenNs: w.nowNs, Peers: []segment.Peer{{Pid: 1, Level: 7, Role: "be", StartedNs: w.nowNs}}}}
		if err := w.later(second / 1000).Look(); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.groups) != MostGPUs+1 {
		t.Errorf("%d groups", len(w.groups))
	}
}

// drain takes metrics until the test ends.
func drain(t *testing.T) chan<- prometheus.Metric {
	metrics := make(chan prometheus.Metric)
	t.Cleanup(func() { close(metrics) })
	go func() {
		for range metrics {
		}
	}()
	return metrics
}

// A histogram is there with buckets and as a native one.
func TestHistograms(t *testing.T) {
	p := segment.Peer{Pid: 1, Role: "lc", StartedNs: 10 * second}
	h := &p.Times.Switches
	h.SumNs = 3 * second
	h.Buckets[0], h.Buckets[5], h.Buckets[segment.FirstBucket], h.Buckets[segment.TimeBuckets-1] = 3, 7, 2, 1
	w := newWorld(t, p)
	got := w.families()[Prefix+"switch_duration_seconds"].Metric[0].Histogram
	if got.GetSampleCount() != 13 || got.GetSampleSum() != 3 || len(got.Bucket) != segment.TimeBuckets-1 {
		t.Fatalf("%v", got)
	}
	for _, b := range got.Bucket {
		want, le := uint64(3), b.GetUpperBound()
		if le >= 1.0/(1<<12) { // 190 us are counted up to 244 us
			want = 10
		}
		if le >= 1 {
			want = 12
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("up to %v s: %d, want %d", le, b.GetCumulativeCount(), want)
		}
	}
	if first, last := got.Bucket[0].GetUpperBound(), got.Bucket[len(got.Bucket)-1].GetUpperBound(); first != 1.0/(1<<17) || last != 32 {
		t.Errorf("bounds from %v to %v s", first, last)
	}
	// Native: index i is for times up to 2^i s, the zero bucket for those up to 2^-17 s.
	if got.GetSchema() != 0 || got.GetZeroThreshold() != 1.0/(1<<17) || got.GetZeroCount() != 3 {
		t.Errorf("%v", got)
	}
	native, index, at := map[int32]int64{}, int32(0), 0
	count := int64(0)
	for _, span := range got.PositiveSpan {
		index += span.GetOffset()
		for range span.GetLength() {
			count += got.PositiveDelta[at]
			native[index] = count
			index++
			at++
		}
	}
	for i, want := range map[int32]int64{-12: 7, 0: 2, 6: 1} {
		if native[i] != want {
			t.Errorf("native bucket %d: %d, want %d (%v)", i, native[i], want, native)
		}
	}
	if p.Times.Stops != (segment.Histogram[uint64]{}) || w.families()[Prefix+"stop_duration_seconds"] != nil {
		t.Error("a histogram of nothing")
	}
}

// An error of reading is an error of the scrape.
func TestReadFails(t *testing.T) {
	w := newWorld(t)
	w.err = errors.New("no such group")
	if err := w.Look(); !errors.Is(err, w.err) {
		t.Errorf("Look() = %v", err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Collector)
	if _, err := registry.Gather(); err == nil || !strings.Contains(err.Error(), "no such group") {
		t.Errorf("Gather() = %v", err)
	}
}

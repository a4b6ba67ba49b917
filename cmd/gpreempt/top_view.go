package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// view is what top shows on a terminal. It knows no terminal: lines makes the lines of a screen, key does what a key says.
type view struct {
	interval  time.Duration
	ramp      []rune // of sparklines
	now       sample
	said      error // why the last sample could not be taken
	processes map[peerKey]*history
	gpus      map[gpuKey]*history
	seenNs    map[string]uint64 // when a GPU was read last, by path
	order     int               // index into columns
	reversed  bool
	paused    bool
	details   bool
	helping   bool // what keys and columns mean is there instead of the tables
	selected  peerKey
	top       int // of the lines, the first that is shown
}

// gpuKey is one of the two shares of a GPU.
type gpuKey struct {
	path string
	be   bool
}

func newView(interval time.Duration, ramp []rune) *view {
	return &view{interval: interval, ramp: ramp, processes: map[peerKey]*history{}, gpus: map[gpuKey]*history{}, seenNs: map[string]uint64{}, order: byLevel}
}

func keyOf(gpu *gpuSample, p *peerSample) peerKey { return peerKey{gpu.Path, p.Slot, p.StartedNs} }

// take takes a sample.
func (v *view) take(now sample) {
	v.said = nil
	there := map[peerKey]bool{}
	for i := range now.GPUs {
		gpu := &now.GPUs[i]
		before, known := v.seenNs[gpu.Path]
		v.seenNs[gpu.Path] = gpu.TakenNs
		if known { // the first sample counts from each process's start
			remember(v.gpus, gpuKey{gpu.Path, false}, before, gpu.TakenNs, gpu.LCShare)
			remember(v.gpus, gpuKey{gpu.Path, true}, before, gpu.TakenNs, gpu.BEShare)
		}
		for j := range gpu.Peers {
			p := &gpu.Peers[j]
			key := keyOf(gpu, p)
			there[key] = true
			if known {
				remember(v.processes, key, max(before, p.StartedNs), gpu.TakenNs, p.Rates["share"])
			}
		}
	}
	for key := range v.processes {
		if !there[key] {
			delete(v.processes, key)
		}
	}
	if !v.paused {
		v.now = now
	}
}

func remember[K comparable](all map[K]*history, key K, fromNs, toNs uint64, value float64) {
	if all[key] == nil {
		all[key] = &history{}
	}
	all[key].add(fromNs, toNs, value)
}

// column of the table of processes.
type column struct {
	key     rune // that sorts by it; 0: none does
	title   string
	width   int
	right   bool
	text    func(v *view, gpu *gpuSample, p *peerSample) string
	compare func(a, b *peerSample) int
}

const byLevel = 2 // index into columns

// columns are as many as fit: the first ten take 80 columns of the terminal.
var columns = makeColumns()

func makeColumns() []column {
	rate := func(name string) func(*view, *gpuSample, *peerSample) string {
		return func(_ *view, _ *gpuSample, p *peerSample) string { return short(p.Rates[name]) }
	}
	more := func(of func(*peerSample) float64) func(a, b *peerSample) int {
		return func(a, b *peerSample) int { return cmp.Compare(of(b), of(a)) }
	}
	rated := func(name string) func(a, b *peerSample) int {
		return more(func(p *peerSample) float64 { return p.Rates[name] })
	}
	bytes := func(of func(*segment.Memory) uint64) func(p *peerSample) float64 {
		return func(p *peerSample) float64 {
			if p.Memory == nil {
				return -1
			}
			return float64(of(p.Memory))
		}
	}
	amounts := func(of func(*segment.Memory) uint64) func(*view, *gpuSample, *peerSample) string {
		return func(_ *view, _ *gpuSample, p *peerSample) string {
			if p.Memory == nil {
				return "-"
			}
			return shortAmount(of(p.Memory))
		}
	}
	onGPU := func(m *segment.Memory) uint64 { return m.Resident + min(m.Pinned, ^m.Resident) }
	swapped := func(m *segment.Memory) uint64 { return m.Swapped }
	return append([]column{
		{'p', "PID", 7, true, func(_ *view, _ *gpuSample, p *peerSample) string { return fmt.Sprint(p.Pid) },
			func(a, b *peerSample) int { return cmp.Compare(a.Pid, b.Pid) }},
		{'n', "NAME", 10, false, func(_ *view, _ *gpuSample, p *peerSample) string { return p.Name },
			func(a, b *peerSample) int { return strings.Compare(a.Name, b.Name) }},
		{'l', "LEVEL", 5, false, func(_ *view, _ *gpuSample, p *peerSample) string { return p.Role },
			func(a, b *peerSample) int { return cmp.Compare(a.Level, b.Level) }},
		{0, "STATE", 8, false, func(_ *view, _ *gpuSample, p *peerSample) string { return p.State }, nil},
		{'s', "SHARE", 5, true, func(_ *view, _ *gpuSample, p *peerSample) string { return share(p) }, rated("share")},
		{0, "MINUTE", 10, false, func(v *view, gpu *gpuSample, p *peerSample) string {
			if h := v.processes[keyOf(gpu, p)]; h != nil {
				return h.sparkline(gpu.TakenNs, 10, v.ramp)
			}
			return ""
		}, nil},
		{'w', "WIN/s", 6, true, rate("windows"), rated("windows")},
		{'b', "STOP/s", 6, true, rate("stops"), rated("stops")},
		{'g', "ON GPU", 7, true, amounts(onGPU), more(bytes(onGPU))},
		{'x', "SWAPPED", 7, true, amounts(swapped), more(bytes(swapped))},
		{0, "SLICE", 7, true, func(_ *view, _ *gpuSample, p *peerSample) string { return slice(p.TimesliceUs) }, nil},
	}, furtherColumns(rate)...)
}

// furtherColumns are there where the terminal is wide.
func furtherColumns(rate func(string) func(*view, *gpuSample, *peerSample) string) (all []column) {
	for _, of := range ratedCounters() {
		if of.counter != "windows" {
			all = append(all, column{0, of.title, len(of.title), true, rate(of.counter), nil})
		}
	}
	return append(all,
		column{0, "IN FORCE", 28, false, func(_ *view, _ *gpuSample, p *peerSample) string { return orDash(p.Mechanisms) }, nil},
		column{0, "NOT IN FORCE", 28, false, func(_ *view, _ *gpuSample, p *peerSample) string { return orDash(p.Fallbacks) }, nil})
}

// short is a number in six characters, whatever a process says.
func short(n float64) string {
	switch {
	case n < 9999.95:
		return fmt.Sprintf("%.1f", n)
	case n < 999_999.5:
		return fmt.Sprintf("%.0f", n)
	case n < 9999.5e6:
		return fmt.Sprintf("%.0fM", n/1e6)
	}
	return "much"
}

// shortAmount is an amount of memory in seven characters.
func shortAmount(n uint64) string {
	value, unit := float64(n)/(1<<20), "MiB"
	for _, larger := range []string{"GiB", "TiB"} {
		if value >= 999.5 {
			value, unit = value/1024, larger
		}
	}
	switch {
	case value >= 999.5:
		return "much"
	case unit == "MiB" || value >= 9.95:
		return fmt.Sprintf("%.0f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// fitted is as many columns as fit, at least one.
func fitted(width int) []column {
	used := -1
	for i, c := range columns {
		if used += c.width + 1; used > width && i > 0 {
			return columns[:i]
		}
	}
	return columns
}

// look is how text looks.
type look int

const (
	plain look = iota
	bold
	dim
	inverse
	warning
)

type span struct {
	text string
	look look
}

type line []span

// pad fits a text into a width: it adds blanks, or cuts.
func pad(text string, width int, right bool) string {
	runes := []rune(text)
	if len(runes) > width {
		runes = runes[:width]
	}
	blank := strings.Repeat(" ", width-len(runes))
	if right {
		return blank + string(runes)
	}
	return string(runes) + blank
}

// row is a process's place in the table.
type row struct {
	gpu *gpuSample
	p   *peerSample
}

// ordered are the processes of a GPU as they are sorted.
func (v *view) ordered(gpu *gpuSample) (all []row) {
	for i := range gpu.Peers {
		all = append(all, row{gpu, &gpu.Peers[i]})
	}
	slices.SortStableFunc(all, func(a, b row) int {
		order := columns[v.order].compare(a.p, b.p)
		if v.reversed {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.p.Slot, b.p.Slot))
	})
	return all
}

func (v *view) rows() (all []row) {
	for i := range v.now.GPUs {
		all = append(all, v.ordered(&v.now.GPUs[i])...)
	}
	return all
}

// lines are the lines of a screen, no more and none wider than it is.
func (v *view) lines(width, height int) []line {
	if width < 1 || height < 1 {
		return nil
	}
	head, foot := []line{v.title(width)}, []line{v.help(width)}
	body, at := v.body(width)
	if details := v.detailed(width); height > 6 && len(details) > 0 {
		foot = append(details[:min(len(details), (height-2)/2)], foot...)
	}
	room := max(height-len(head)-len(foot), 0)
	if at >= 0 { // the selected process stays in sight
		v.top = min(v.top, at)
		v.top = max(v.top, at-room+1)
	}
	v.top = max(0, min(v.top, len(body)-room))
	body = body[v.top:min(len(body), v.top+room)]
	for len(body) < room {
		body = append(body, nil)
	}
	all := slices.Concat(head, body, foot)
	return all[:min(len(all), height)]
}

func (v *view) title(width int) line {
	text := fmt.Sprintf("gpreempt top  every %v", v.interval)
	if v.paused {
		text += "  paused"
	}
	if v.said != nil {
		return line{{pad(clean(text+"  "+v.said.Error()), width, false), warning}}
	}
	return line{{pad(text, width, false), bold}}
}

func (v *view) help(width int) line {
	return line{{pad("? help  q quit  sort: p n l s w b g x, r reverses  up down enter  space: pause", width, false), inverse}}
}

// body is the lines between the title and the line of keys, and the line of the selected process; -1: in none.
func (v *view) body(width int) (body []line, at int) {
	if !v.helping {
		return v.table(width)
	}
	for text := range strings.SplitSeq(cli.Wrap(topHelp, width), "\n") {
		body = append(body, line{{pad(text, width, false), plain}})
	}
	return body, -1
}

// table is the GPUs and their processes, and in which line the selected process is; -1: in none.
func (v *view) table(width int) (body []line, at int) {
	at = -1
	if len(v.now.GPUs) == 0 {
		return []line{{{pad("No process of this user runs under the library.", width, false), plain}}}, at
	}
	shown := fitted(width)
	for i := range v.now.GPUs {
		gpu := &v.now.GPUs[i]
		if i > 0 {
			body = append(body, nil)
		}
		if gpu.Error != "" {
			body = append(body, line{{pad(clean(heading(&gpu.Snapshot)+"  cannot be read: "+gpu.Error), width, false), warning}})
			continue
		}
		body = append(body, line{{pad(heading(&gpu.Snapshot), width, false), bold}}, v.shares(gpu, width))
		if text := sayOthers(gpu.Others); text != "" {
			body = append(body, line{{pad(clean("OTHERS  "+text), width, false), warning}})
		}
		body = append(body, v.titles(shown, width))
		for _, r := range v.ordered(gpu) {
			as := plain
			if keyOf(r.gpu, r.p) == v.selected {
				at, as = len(body), inverse
			}
			cells := make([]string, len(shown))
			for j, c := range shown {
				cells[j] = pad(clean(c.text(v, r.gpu, r.p)), c.width, c.right)
			}
			body = append(body, line{{pad(strings.Join(cells, " "), width, false), as}})
		}
	}
	return body, at
}

// shares are a GPU's shares now, and over the last minute.
func (v *view) shares(gpu *gpuSample, width int) line {
	spark := func(be bool) string {
		if h := v.gpus[gpuKey{gpu.Path, be}]; h != nil {
			return h.sparkline(gpu.TakenNs, 30, v.ramp)
		}
		return strings.Repeat(" ", 30)
	}
	return line{{pad(fmt.Sprintf("LC %3.0f %% %s  BE %3.0f %% %s", 100*gpu.LCShare, spark(false), 100*gpu.BEShare, spark(true)), width, false), plain}}
}

// titles are the columns' titles; that of the order stands out.
func (v *view) titles(shown []column, width int) (titles line) {
	used := 0
	for i, c := range shown {
		as := dim
		if i == v.order {
			as = bold
		}
		text := pad(c.title, min(c.width, width-used), c.right)
		titles = append(titles, span{text, as})
		if used += c.width; used < width && i+1 < len(shown) {
			titles = append(titles, span{" ", plain})
			used++
		}
	}
	return titles
}

// detailed is all that is known of the selected process.
func (v *view) detailed(width int) (all []line) {
	if !v.details || v.helping {
		return nil
	}
	for _, r := range v.rows() {
		if keyOf(r.gpu, r.p) != v.selected {
			continue
		}
		words := []string{fmt.Sprintf("PID %d", r.p.Pid), r.p.Name, "SLICE " + slice(r.p.TimesliceUs)}
		for _, of := range ratedCounters() {
			words = append(words, of.title+" "+short(r.p.Rates[of.counter]))
		}
		words = append(words, "IN FORCE "+orDash(r.p.Mechanisms), "NOT IN FORCE "+orDash(r.p.Fallbacks))
		all = append(all, flow(words, width)...)
		one := []peerSample{*r.p}
		for _, print := range []func(io.Writer, []peerSample){printHints, printBLP, printObjectives, printMemory} {
			for _, words := range titled(func(w io.Writer) { print(w, one) }) {
				all = append(all, flow(words, width)...)
			}
		}
	}
	return all
}

// titled makes words of each row of a table whose cells are apart by tabs: the title of a column and the row's cell.
func titled(print func(io.Writer)) (all [][]string) {
	var table bytes.Buffer
	print(&table)
	var titles []string
	for text := range strings.Lines(table.String()) {
		cells := strings.Split(strings.TrimSuffix(text, "\n"), "\t")
		switch {
		case len(cells) == 1: // an empty line
		case titles == nil:
			titles = cells
		default:
			var words []string
			for i, cell := range cells[1:] { // the first is the process
				words = append(words, titles[i+1]+" "+cell)
			}
			all = append(all, words)
		}
	}
	return all
}

// flow writes words one behind the other, and goes on in the next line, which is indented.
func flow(words []string, width int) (all []line) {
	text := ""
	for _, word := range words {
		word = clean(word)
		switch {
		case text == "":
			text = word
		case len([]rune(text))+2+len([]rune(word)) <= width:
			text += "  " + word
		default:
			all = append(all, line{{pad(text, width, false), plain}})
			text = "  " + word
		}
	}
	return append(all, line{{pad(text, width, false), plain}})
}

// move selects the process that many rows below the selected one.
func (v *view) move(by int) {
	if v.helping {
		v.top += by // lines bounds it
		return
	}
	all := v.rows()
	if len(all) == 0 {
		return
	}
	at := slices.IndexFunc(all, func(r row) bool { return keyOf(r.gpu, r.p) == v.selected })
	if at < 0 && by > 0 {
		at = -1
	} else if at < 0 {
		at = len(all)
	}
	chosen := all[max(0, min(at+by, len(all)-1))]
	v.selected = keyOf(chosen.gpu, chosen.p)
}

// key does what a key says.
func (v *view) key(key rune) (quit bool) {
	switch key {
	case 'q':
		return true
	case '?':
		v.helping, v.top = !v.helping, 0
	case 'r':
		v.reversed = !v.reversed
	case ' ':
		v.paused = !v.paused
	default:
		for i, c := range columns {
			if c.key == key && c.compare != nil {
				v.order, v.reversed = i, false
			}
		}
	}
	return false
}

// enter shows or hides the details of the selected process, the first if none is.
func (v *view) enter() {
	if v.helping {
		v.helping = false
		return
	}
	v.details = !v.details
	if !slices.ContainsFunc(v.rows(), func(r row) bool { return keyOf(r.gpu, r.p) == v.selected }) {
		v.selected = peerKey{}
		v.move(1)
	}
}

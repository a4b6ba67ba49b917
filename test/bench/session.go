package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/kernels"
	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
	"github.com/gpreempt/gpreempt/test/bench/workload"
)

// Options says what to measure. Each suite says which of them it has, beside those that all have.
type Options struct {
	Suite   string
	Only    []string // names of cases or workloads; empty = all of the suite
	Folder  string   // of partial results; what files there hold is not measured again
	Minutes float64  // nothing is begun that would not end by then; 0 = all is
	Library string   // path of libgpreempt.so

	Requests int      // LC requests of a run; 0 = as the case says
	Seconds  float64  // of a run
	Systems  []string // empty = all of the suite
	Repeats  int      // runs of each workload; 0 = as the suite says
	Python   string   // with PyTorch

	Command  string // the command line, for the report
	Version  string // of the tree that the command was built from, for the report
	Progress io.Writer

	tests forTests
}

// forTests is what tests that run at the same time have each for themselves; the zero value changes nothing.
type forTests struct {
	environment []string          // Variables of processes that are started, beside our own.
	tools       string            // A folder with stand-ins for the driver's programs.
	systems     []workload.System // Further ones.
	temporary   string            // The folder of temporary folders.
	limits      limits            // How long programs are waited for in vain.
	beAlone     time.Duration
}

// session is one run of a suite. A case has a copy of its own.
type session struct {
	*logger
	options    Options
	executable string
	library    string
	folder     string      // temporary, in memory: segments, configurations
	files      string      // temporary, where programs may be run: PyTorch programs, what is compiled
	segments   string      // folder of the segments of the configurations that are made
	config     string      // GPREEMPT_CONFIG of the workers; "": unchanged
	addMPS     []string    // those that make a worker a client of our MPS server
	models     *models     // of the suite serving
	evaluation *evaluation // of the suite paper
	python     string      // "": there is none
	info       info
	iterations map[work]uint64
	report     *result.Report
	counted    *result.Counted // by the library, in the last BE process that ran together with LC
	mechanisms string          // of the configurations for block-level preemption, as TOML
	apart      chan struct{}   // of one place: programs under fire that must not run at the same time; nil: all may
}

// work is the kernel a worker launches.
type work struct {
	us          int // wanted duration, alone on the GPU; with waves: of a block
	blocksPerSM int // at a time
	waves       int // one after another; 0: 1
	streams     int // of best-effort work: two kernels at a time on each; 0: 1, with four
	sharedBytes int
	cooperative bool
	uneven      bool // blocks take from half of us to one and a half
}

// uneven has blocks that do not end at the same time.
func uneven(w work) work {
	w.uneven = true
	return w
}

type info struct {
	Name            string `json:"name"`
	Devices         int    `json:"devices"`
	CUDA            int    `json:"cuda"`
	Multiprocessors int    `json:"multiprocessors"`
	SharedBytes     int    `json:"shared_bytes"`
	MemoryBytes     uint64 `json:"memory_bytes"`
}

func newSession(options Options) *session {
	return &session{logger: &logger{out: options.Progress}, options: options, iterations: map[work]uint64{}}
}

// prepare looks at the machine.
func (s *session) prepare(ctx context.Context) {
	s.executable = must(os.Executable())
	during("find the library", func() {
		s.library = must(filepath.Abs(s.options.Library))
		must(os.Stat(s.library))
	})
	var err error
	if s.python, err = exec.LookPath(s.options.Python); err != nil {
		s.python = ""
	}
	s.log("%s: looks at the GPU", s.options.Suite)
	during("look at the GPU", func() { // by a worker
		w := s.start(ctx, "", "info")
		defer w.end()
		check(w.awaitReady(ctx, &s.info))
	})
}

// CheckFolder sees that files can be written to a folder, which it makes.
func CheckFolder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make the folder of results: %w", err)
	}
	return CheckFile(filepath.Join(path, "results"))
}

// CheckFile sees that a file can be written, and does not change it.
func CheckFile(path string) error {
	probe, err := os.CreateTemp(filepath.Dir(path), ".gpreempt-bench-")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	probe.Close()
	os.Remove(probe.Name())
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // a file takes the place of what is there
		return fmt.Errorf("write results: %s is there and is no file", path)
	}
	return nil
}

// inherited is the environment of what is started, before anything is made of it. Of two entries the later one counts.
func (s *session) inherited() []string { return append(os.Environ(), s.options.tests.environment...) }

// environment is the worker's: the role decides whether the library is preloaded ("" = not).
func (s *session) environment(role string) []string {
	var environment, preloads []string
	for _, entry := range s.inherited() {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "GPREEMPT_PRIORITY":
		case "GPREEMPT_CONFIG":
			if s.config == "" {
				environment = append(environment, entry)
			}
		case "LD_PRELOAD":
			preloads = slices.DeleteFunc(strings.FieldsFunc(value, isPreloadSeparator),
				func(library string) bool { return strings.HasSuffix(library, "libgpreempt.so") })
		default:
			environment = append(environment, entry)
		}
	}
	if role != "" {
		preloads = append([]string{s.library}, preloads...) // before a simulated driver, whose ioctl it forwards to
		environment = append(environment, "GPREEMPT_PRIORITY="+role)
	}
	if s.config != "" {
		environment = append(environment, "GPREEMPT_CONFIG="+s.config)
	}
	if len(preloads) > 0 {
		environment = append(environment, "LD_PRELOAD="+strings.Join(preloads, ":"))
	}
	return environment
}

// configuredBy is the session for workers with a configuration; those without a role have none.
func (s *session) configuredBy(config, role string) *session {
	one := *s
	one.config = config
	if role == "" {
		one.config = ""
	}
	return &one
}

func isPreloadSeparator(r rune) bool { return r == ':' || r == ' ' } // ld.so(8)

// workerLimit bounds the life of a worker in C, in the worker itself.
const workerLimit = 60 * time.Second

// start starts a worker in C and lets it set itself up.
func (s *session) start(ctx context.Context, role, kind string, options ...string) *worker {
	arguments := append([]string{s.executable, "bench-worker", kind, "--limit", strconv.Itoa(int(workerLimit / time.Second))}, options...)
	name := kind + " worker"
	if role != "" {
		name += " (" + role + ")"
	}
	p := program{name: name, arguments: arguments, module: kernels.Bench,
		environment: append(s.environment(role), s.addMPS...)}
	return s.launch(ctx, p, role)
}

// words are options and arguments of a worker, which takes numbers for yes and no.
func words(all ...any) (words []string) {
	for _, one := range all {
		if yes, is := one.(bool); is {
			one = map[bool]int{true: 1}[yes]
		}
		words = append(words, fmt.Sprint(one))
	}
	return words
}

// launch starts a worker and lets it set itself up.
func (s *session) launch(ctx context.Context, p program, role string) *worker {
	w := p.start(ctx)
	if role != "" {
		w.library = filepath.Base(s.library)
	}
	if err := w.initialise(); err != nil {
		w.kill()
		check(err)
	}
	return w
}

// finish ends a worker and passes on what the library said in it.
func (s *session) finish(w *worker) {
	w.end()
	s.passOn(w)
}

// passOn logs what the library said in a worker that has ended. The worker's own words are in the error.
func (s *session) passOn(w *worker) {
	for line := range strings.Lines(w.said.all()) {
		if strings.Contains(line, "gpreempt") && !strings.Contains(line, "gpreempt-bench") { // our folders' names
			s.log("%s: %s", w.name, strings.TrimSpace(line))
		}
	}
}

// run lets a worker in C do its work once.
func (s *session) run(ctx context.Context, result any, role, kind string, options ...string) {
	w := s.start(ctx, role, kind, options...)
	defer s.finish(w)
	check(w.awaitReady(ctx, nil))
	check(w.ask(ctx, workerLimit, result, "run"))
}

// begin lets a worker start work that goes on until stop is asked for, when it is set up.
func (w *worker) begin(ctx context.Context) {
	check(w.awaitReady(ctx, nil))
	check(w.ask(ctx, startLimit, nil, "start"))
}

// workOptions describes the kernel to a worker, calibrated on first use. All runs of a session use the same
// iteration counts.
func (s *session) workOptions(ctx context.Context, w work) []string {
	perWave := w.blocksPerSM * s.info.Multiprocessors
	options := words("--blocks", perWave, "--shared", w.sharedBytes, "--cooperative", w.cooperative)
	one := w
	one.waves, one.streams, one.uneven = 0, 0, false // a block takes as long in the second wave, beside others, and on average
	if s.iterations[one] == 0 {
		var calibrated struct {
			Iterations uint64 `json:"iterations"`
		}
		during(fmt.Sprintf("calibrate a kernel of %d us", w.us), func() {
			s.run(ctx, &calibrated, "", "calibrate", append(options, words("--us", w.us)...)...)
		})
		s.iterations[one] = calibrated.Iterations
	}
	if w.streams > 0 {
		options = append(options, words("--streams", w.streams, "--depth", 2*w.streams)...)
	}
	return append(options, words("--uneven", w.uneven, "--blocks", max(w.waves, 1)*perWave, "--iterations", s.iterations[one])...)
}

// makeFolders makes the temporary folders, until remove.
func (s *session) makeFolders() (remove func()) {
	remove = func() {
		for _, folder := range []string{s.folder, s.files} {
			_ = os.RemoveAll(folder) // what is left there harms nobody
		}
	}
	err := caught(func() {
		s.folder = temporaryFolder(cmp.Or(s.options.tests.temporary, "/dev/shm")) // in memory, where segments are best kept
		s.files = temporaryFolder(s.options.tests.temporary)
		s.segments = filepath.Join(s.folder, "segments")
		check(os.Mkdir(s.segments, 0o700))
		writeTorchPrograms(s.files)
	})
	if err != nil {
		remove()
	}
	check(err)
	return remove
}

// temporaryFolder makes one in a folder, or where others are if that is not there.
func temporaryFolder(parent string) string {
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	return must(os.MkdirTemp(parent, "gpreempt-bench-"))
}

// configure adds a section to the configuration that workers get, until undo. Their segments are of this session, unless
// the caller's configuration names others.
func (s *session) configure(section string) (undo func()) {
	before := s.config
	text := []byte{}
	if path := os.Getenv("GPREEMPT_CONFIG"); path != "" {
		during("read GPREEMPT_CONFIG", func() { text = must(os.ReadFile(path)) })
	}
	text = append(text, "\n"+section...)
	ours := append(slices.Clone(text), fmt.Sprintf("\n[segment]\ndirectory = %q\n", s.segments)...)
	if _, err := configs.Parse("", ours); err == nil || len(text) == 0 {
		text = ours
	}
	s.config = filepath.Join(must(os.MkdirTemp(s.folder, "config-")), "gpreempt.toml")
	check(os.WriteFile(s.config, text, 0o600))
	return func() { s.config = before }
}

// awaited looks again and again until there is no error, and returns the last one where the time is over.
func awaited(ctx context.Context, limit time.Duration, look func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := look()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// peer is a process under the library, as others see it, and the path of its segment; nil where there is no such process. On a busy machine a
// segment's members may not answer a reader in time, who asks again then.
func peer(config string, pid int) (found *segment.Peer, path string, err error) {
	settings, err := configs.Load(config)
	if err != nil {
		return nil, "", fmt.Errorf("what the library counted: %w", err)
	}
	for deadline := time.Now().Add(answerLimit); ; time.Sleep(pollInterval) {
		snapshots, err := segment.Snapshots(settings.Segment.Directory, os.Getuid())
		if err != nil {
			return nil, "", fmt.Errorf("what the library counted: %w", err)
		}
		for _, snapshot := range snapshots {
			for _, p := range snapshot.Peers {
				if int(p.Pid) == pid {
					return &p, snapshot.Path, nil
				}
			}
		}
		unread := slices.IndexFunc(snapshots, func(s segment.Snapshot) bool { return s.Error != "" })
		if unread < 0 {
			return nil, "", nil
		}
		if time.Now().After(deadline) {
			return nil, "", fmt.Errorf("what the library counted: segment %s: %s", snapshots[unread].Path, snapshots[unread].Error)
		}
	}
}

// count is what the library counted so far in a process with a configuration; nil where there is no such process.
func (s *session) count(config string, pid int) *result.Counted {
	p, _, err := peer(config, pid)
	if err != nil {
		s.log("%v", err)
	}
	if p == nil {
		return nil
	}
	c := &result.Counted{Mechanisms: p.Mechanisms, Fallbacks: p.Fallbacks}
	if p.BLP != nil {
		c.BLP = *p.BLP
	}
	return c
}

// forCase is a session for a case, whose rows are its own.
func (s *session) forCase() *session {
	one := *s
	one.report = &result.Report{Head: s.report.Head}
	return &one
}

// pause waits; it ends early with the context, whose error it returns.
func pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func newHead(i info, options Options, mode string) result.Head {
	h := result.Head{
		Schema: 1, Benchmark: options.Suite, GPU: i.Name, Driver: driverVersion(),
		CUDA: fmt.Sprintf("%d.%d", i.CUDA/1000, i.CUDA%1000/10), Date: time.Now().UTC().Format(time.DateOnly),
		Commit: options.Version, Command: options.Command, Mode: mode,
		Simulated: strings.HasPrefix(i.Name, "Simulated"),
	}
	if h.Simulated {
		h.Driver = "simulated"
	}
	return h
}

var nvrmVersion = regexp.MustCompile(`NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s`)

func driverVersion() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return "unknown"
	}
	if match := nvrmVersion.FindSubmatch(text); match != nil {
		return string(match[1])
	}
	return "unknown"
}

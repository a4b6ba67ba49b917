// Command suite runs parts of the Makefile, each to its end. At the end it says what failed, what was skipped and why, and how long each
// took.
//
//	go run ./test/suite [-at-once N] PART...
//
// A part is a target of the Makefile. Its `go test` commands write events (-json, by GO_TEST_FLAGS), which the suite reads; all other
// output it passes on. With GPREEMPT_CI a test that is skipped is a failure.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is a line of test2json.
type event struct {
	Action, Package, Test, Output, ImportPath, Key, Value string
	Elapsed                                               float64
}

type test struct{ pkg, name string }

// skip is a test that was skipped, with its reason.
type skip struct {
	test
	why string
}

// part is what became of a target.
type part struct {
	name           string
	err            error
	real, cpu      time.Duration
	passed         int
	failed         []test
	failedPackages []string
	skipped        []skip
	said           []string         // seeds and the like (testing.T.Attr)
	slowest        map[test]float64 // seconds of top-level tests
}

// suite runs parts and prints their output, a line or a test at a time.
type suite struct {
	command func(part string) *exec.Cmd
	out     io.Writer
	mutex   sync.Mutex // of out
}

func (s *suite) print(format string, arguments ...any) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fmt.Fprintf(s.out, format, arguments...)
}

// reader takes the events of a part, and keeps what each test printed until it is known whether that is of interest.
type reader struct {
	suite  *suite
	part   *part
	output map[test]*strings.Builder
}

func (r *reader) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		r.suite.print("%s: %s\n", r.part.name, line)
		return
	}
	if e.Package == "" && e.ImportPath != "" { // what a build says
		r.suite.print("%s", e.Output)
		return
	}
	t := test{e.Package, e.Test}
	if r.output[t] == nil {
		r.output[t] = &strings.Builder{}
	}
	switch e.Action {
	case "output":
		r.output[t].WriteString(e.Output)
	case "attr":
		r.part.said = append(r.part.said, fmt.Sprintf("%s of %s: %s %s", t.name, short(t.pkg), e.Key, e.Value))
	case "pass", "fail", "skip":
		r.ends(t, e)
	}
}

// ends notes the end of a test, or of a package (t.name is empty).
func (r *reader) ends(t test, e event) {
	said := r.output[t].String()
	delete(r.output, t)
	if t.name != "" && !strings.Contains(t.name, "/") {
		r.part.slowest[t] = e.Elapsed
	}
	switch {
	case e.Action == "fail" && t.name == "":
		r.part.failedPackages = append(r.part.failedPackages, t.pkg)
		r.suite.print("%s", said)
	case e.Action == "fail":
		r.part.failed = append(r.part.failed, t)
		r.suite.print("%s", said)
	case t.name == "":
		r.suite.print("%s: %s: %s in %.0f s\n", r.part.name, t.pkg, e.Action, e.Elapsed)
	case e.Action == "skip":
		r.part.skipped = append(r.part.skipped, skip{t, reason(said)})
	default:
		r.part.passed++
	}
}

// reason is the last output of a test before it was skipped, in one line.
func reason(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// run runs a part to its end.
func (s *suite) run(name string) *part {
	p := &part{name: name, slowest: map[test]float64{}}
	r := &reader{suite: s, part: p, output: map[test]*strings.Builder{}}
	cmd := s.command(name)
	began := time.Now()
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(read)
		for {
			line, err := lines.ReadString('\n')
			if line = strings.TrimSuffix(line, "\n"); line != "" || err == nil {
				r.line(line)
			}
			if err != nil {
				return
			}
		}
	}()
	p.err = cmd.Run()
	_ = write.Close()
	<-done
	for t, said := range r.output { // a test that has not ended: its package was ended before
		if t.name != "" {
			p.failed = append(p.failed, t)
			s.print("%s", said)
		}
	}
	p.real = time.Since(began)
	if state := cmd.ProcessState; state != nil {
		p.cpu = state.UserTime() + state.SystemTime()
	}
	return p
}

// runAll runs parts in this order, so many at once.
func (s *suite) runAll(names []string, atOnce int) []*part {
	parts := make([]*part, len(names))
	next := make(chan int, len(names))
	for i := range names {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range max(1, atOnce) {
		all.Go(func() {
			for i := range next {
				s.print("%s: begins\n", names[i])
				parts[i] = s.run(names[i])
				s.print("%s: %s\n", names[i], parts[i].word(false))
			}
		})
	}
	all.Wait()
	return parts
}

func (p *part) word(strict bool) string {
	if p.fails(strict) {
		return "FAILED"
	}
	return "ok"
}

// fails says whether a part is a failure. strict: skipped tests are.
func (p *part) fails(strict bool) bool {
	return p.err != nil || len(p.failed) > 0 || (strict && len(p.skipped) > 0)
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/gpreempt/gpreempt/") }

// summary prints what became of all parts. False: one of them is a failure.
func (s *suite) summary(parts []*part, strict bool) bool {
	good := true
	s.print("\n%-8s %-7s %7s %7s %7s %7s %7s\n", "part", "", "real s", "CPU s", "passed", "failed", "skipped")
	for _, p := range parts {
		good = good && !p.fails(strict)
		s.print("%-8s %-7s %7.0f %7.0f %7d %7d %7d\n", p.name, p.word(strict), p.real.Seconds(), p.cpu.Seconds(), p.passed, len(p.failed), len(p.skipped))
	}
	for _, p := range parts {
		if p.err != nil && len(p.failed) == 0 {
			s.print("failed: %s: %v %s\n", p.name, p.err, strings.Join(p.failedPackages, " "))
		}
		for _, t := range p.failed {
			s.print("failed: %s: %s of %s\n", p.name, t.name, short(t.pkg))
		}
	}
	for _, p := range parts {
		for _, t := range p.skipped {
			s.print("skipped: %s: %s of %s: %s\n", p.name, t.name, short(t.pkg), t.why)
		}
	}
	for _, p := range parts {
		for _, said := range p.said {
			s.print("noted: %s: %s\n", p.name, said)
		}
	}
	s.slowest(parts)
	return good
}

// slowest prints the tests that took longest.
func (s *suite) slowest(parts []*part) {
	const most = 10
	type timed struct {
		test
		seconds float64
	}
	var all []timed
	for _, p := range parts {
		for t, seconds := range p.slowest {
			all = append(all, timed{t, seconds})
		}
	}
	slices.SortFunc(all, func(a, b timed) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return strings.Compare(a.pkg+a.name, b.pkg+b.name)
	})
	for _, t := range all[:min(most, len(all))] {
		s.print("slowest: %4.0f s %s of %s\n", t.seconds, t.name, short(t.pkg))
	}
}

func main() {
	atOnce := flag.Int("at-once", 2, "parts that run beside each other")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: suite [-at-once N] PART...")
		os.Exit(2)
	}
	s := &suite{out: os.Stdout, command: func(part string) *exec.Cmd {
		return exec.Command("make", "--no-print-directory", part, "GO_TEST_FLAGS=-json")
	}}
	if !s.summary(s.runAll(flag.Args(), *atOnce), os.Getenv("GPREEMPT_CI") != "") {
		os.Exit(1)
	}
}

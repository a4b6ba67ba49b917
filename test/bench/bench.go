// Package bench measures how a latency-critical (LC) process fares beside best-effort (BE) ones on this
// machine's GPU: alone, with the driver's default time slicing, and under the library. The processes
// are worker processes of the command itself (worker.c).
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Options says what to measure.
type Options struct {
	Suite    string   // foundation, hints, quick, blp-mps, blp-stream or paired
	Only     []string // names of cases; empty = all of the suite
	Requests int      // LC requests a run; 0 = as the case says
	Library  string   // path of libgpreempt.so
	Against  string   // paired: path of an earlier build's
	Rounds   int      // paired; 0 = pairedRounds
	Command  string   // the command line, for the report
	Version  string   // of the tree that the command was built from, for the report
	Progress io.Writer
}

const quickRequests = 200

// measured is the least that a case is expected to do.
const measured = "measured"

// session is one run of a suite.
type session struct {
	executable string
	library    string
	config     string              // GPREEMPT_CONFIG of the workers; "": as it is
	added      map[string][]string // variables of the environment, by kind of worker
	addMPS     []string            // those that make a worker a client of our MPS server
	info       info
	iterations map[work]uint64
	requests   int
	progress   io.Writer
	saying     sync.Mutex
	report     *Report
	counted    *Counted     // by the library, in the last BE process that ran together with LC
	builds     []contestant // the earlier one and ours
	rounds     int
}

func (s *session) log(format string, arguments ...any) {
	s.saying.Lock()
	defer s.saying.Unlock()
	fmt.Fprintf(s.progress, format+"\n", arguments...)
}

// Run measures the cases of a suite one after another. A case that fails stays in the report with what
// went wrong; the error is for a machine on which nothing can be measured.
func Run(ctx context.Context, options Options) (*Report, error) {
	cases, err := Cases(options.Suite, options.Only)
	if err != nil {
		return nil, err
	}
	s := &session{
		iterations: map[work]uint64{}, requests: options.Requests, progress: options.Progress, rounds: options.Rounds,
	}
	if options.Suite == "quick" && s.requests == 0 {
		s.requests = quickRequests
	}
	if s.executable, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find own executable: %w", err)
	}
	if s.library, err = filepath.Abs(options.Library); err != nil {
		return nil, fmt.Errorf("find the library: %w", err)
	}
	if _, err := os.Stat(s.library); err != nil {
		return nil, fmt.Errorf("find the library: %w", err)
	}
	if err := s.run(ctx, &s.info, "", "info"); err != nil {
		return nil, fmt.Errorf("look at the GPU: %w", err)
	}
	mode, section := "time-sliced", noHints
	switch options.Suite {
	case "hints":
		section = ""
	case "blp-mps":
		mode = "MPS"
		quit, err := s.underMPS(ctx)
		if err != nil {
			return nil, err
		}
		defer quit()
	case PairedSuite:
		section = ""
		undo, err := s.contest(options.Against)
		if err != nil {
			return nil, err
		}
		defer undo()
	case "blp-stream":
		mode, section = "block-level preemption", onlyBLP+noHints
	}
	s.report = &Report{Head: newHead(s.info, options, mode)}
	undo, err := s.configure(section)
	if err != nil {
		return nil, err
	}
	defer undo()
	for _, c := range cases {
		began := time.Now()
		if err := c.measure(ctx, s, c.Name); err != nil {
			if ctx.Err() != nil {
				return s.report, ctx.Err()
			}
			s.log("%s: %v", c.Name, err)
			missed := false
			s.report.Cases = append(s.report.Cases, Row{
				Case: c.Name, System: "gpreempt", Target: cmp.Or(c.Target, measured), Pass: &missed, Note: err.Error()})
		}
		s.log("%-24s %5.1f s", c.Name, time.Since(began).Seconds())
	}
	if s.report.Simulated {
		s.report.withdrawTargets()
	}
	return s.report, nil
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

func round(value float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(value*scale) / scale
}

// completed is the number of kernels that a BE process had completed at a time, between two samples in
// proportion.
func (r *beResult) completed(at uint64) float64 {
	after, exact := slices.BinarySearch(r.TimesNs, at)
	switch {
	case exact:
		return float64(r.Counts[after])
	case len(r.TimesNs) == 0:
		return 0
	case after == 0:
		return float64(r.Counts[0])
	case after == len(r.TimesNs):
		return float64(r.Counts[after-1])
	}
	before := after - 1
	part := float64(at-r.TimesNs[before]) / float64(r.TimesNs[after]-r.TimesNs[before])
	return float64(r.Counts[before]) + part*float64(r.Counts[after]-r.Counts[before])
}

// rate is in kernels a second over an interval.
func (r *beResult) rate(startNs, endNs uint64) float64 {
	return (r.completed(endNs) - r.completed(startNs)) / (float64(endNs-startNs) / 1e9)
}

var errNothingCompleted = errors.New("the BE process completed nothing")

// ownRate is the rate over all of a process's samples.
func (r *beResult) ownRate() (float64, error) {
	if len(r.TimesNs) < 2 {
		return 0, errNothingCompleted
	}
	return r.rate(r.TimesNs[0], r.TimesNs[len(r.TimesNs)-1]), nil
}

// mean is the mean latency in nanoseconds.
func (r *lcResult) mean() float64 {
	var sum uint64
	for _, ns := range r.LatenciesNs {
		sum += ns
	}
	return float64(sum) / float64(len(r.LatenciesNs))
}

// busy is the part of the LC process's time in which a request was under way.
func (r *lcResult) busy() float64 {
	return r.mean() * float64(len(r.LatenciesNs)) / float64(r.EndNs-r.StartNs)
}

// share is the rate of BE, of its rate alone and of what the requests beside it leave. Where nobody makes way for them
// they mostly wait for BE: what they take alone counts there.
func share(rate, beAlone float64, lc, alone *lcResult, makesWay bool) *Share {
	busy := lc.busy()
	if !makesWay {
		busy = alone.mean() * float64(len(lc.LatenciesNs)) / float64(lc.EndNs-lc.StartNs)
	}
	s := &Share{Alone: round(beAlone, 2), Now: round(rate, 2), Unit: "kernels/s"}
	if busy < 1 {
		s.Share = round(rate/beAlone/(1-busy), 3)
	}
	return s
}

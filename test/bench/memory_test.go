package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// The program of PyTorch serves what the suite asks of it, PyTorch itself being a stand-in.
func TestLCServes(t *testing.T) {
	t.Parallel()
	python, torch := standInTorch(t)
	options := simulatedOptions(t, memorySuite, &bytes.Buffer{})
	options.Python = python
	options.tests.environment = append(options.tests.environment, torch...)
	s := prepared(t, options)
	succeed(t, func() {
		lc := s.startScript(t.Context(), script{name: "model.py", arguments: []string{"resnet50", "1000"}})
		defer s.finish(lc)
		check(lc.awaitReady(t.Context(), nil))
		if r := lc.requests(t.Context(), 21); len(r) != 40 { // two runs
			t.Errorf("%v", r)
		}
	})
}

// smallGPU makes the simulated device one with little memory, on a slow bus.
var smallGPU = []string{"SIMCUDA_MEMORY_MB=640", "SIMCUDA_CONTEXT_MB=2", "SIMCUDA_COPY_GBS=2"}

// All that needs no PyTorch is measured to its end, and no contents change.
func TestMemorySuite(t *testing.T) {
	t.Parallel()
	measured := func(t *testing.T, seconds float64, only ...string) (rows map[string]result.Row) {
		t.Helper()
		var progress bytes.Buffer
		suite := memorySuite
		if strings.Contains(only[0], "engine") {
			suite = memoryEnginesSuite
		}
		options := simulatedOptions(t, suite, &progress, only...)
		options.Seconds, options.Requests = seconds, 2
		options.tests.environment = slices.Concat(options.tests.environment, smallGPU, standIns(t))
		report, err := suiteOfCases(t, suite).Measure(t.Context(), options)
		if err != nil || len(report.Failed()) != 0 {
			t.Fatalf("%v, %+v\n%s", err, report.Failed(), &progress)
		}
		rows = map[string]result.Row{}
		for _, row := range report.Cases {
			rows[row.Case] = row
		}
		return rows
	}
	for only, notes := range map[string]map[string]string{
		"swap-20": {"swap-20-out": "same contents", "swap-20-in": "same contents", "swap-20-both-ways": "pinned copies both ways"},
		"grow":    {"grow": " s ahead; limit", "grow-with-reserve": "0.0 GB of BE went out"},
		"idle-lc": {"idle-lc": "median of 3"}, "pair-steps": {"pair-steps": "; identical"},
		"engine-behind-be": {"engine-behind-be": "of 2, with"}, "engine-beside-be": {"engine-beside-be": "of 2, with"}, "be-behind-engine": {"be-behind-engine": "of 2, with"},
		"engine-sleep": {"engine-sleep": "; same tokens and contents"},
	} {
		t.Run(only, func(t *testing.T) {
			t.Parallel()
			rows := measured(t, 1, only)
			for try := 1; try < 3 && only == "engine-beside-be" && *rows[only].Value < 2; try++ { // once the engine heard of too little memory beside a program that had not joined, it seems
				rows = measured(t, 1, only)
			}
			for name, note := range notes {
				if row := rows[name]; row.Value == nil || *row.Value <= 0 || !strings.Contains(row.Note, note) {
					t.Errorf("%s: %+v", name, row)
				}
			}
			if row := rows[only]; row.Unit == "starts" && *row.Value != 2 {
				t.Errorf("%+v", row)
			}
			if only == "grow" && strings.Contains(rows["grow"].Note, "; 0.0 GB of BE") {
				t.Errorf("LC grew into a full GPU and nobody went out: %s", rows["grow"].Note)
			}
		})
	}
}

// Two programs swap all the time while another is served.
func TestBesideSwappers(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	options := simulatedOptions(t, memorySuite, &progress)
	options.tests.environment = append(append(options.tests.environment, smallGPU...), "SIMCUDA_MEMORY_MB=256") // a busy machine copies slowly
	s := prepared(t, options)
	s.mechanisms = memoryMechanisms
	succeed(t, func() {
		share, missing := s.fitting(s.info.MemoryBytes, pairShare)
		if missing != 2*share-s.info.MemoryBytes {
			t.Errorf("%d, %d", share, missing)
		}
		config := s.swapConfig("beside", hostMB(missing), "turn_ms = 200")
		note := s.besideSwappers(t.Context(), config, share, func() {
			lc := s.hold(t.Context(), "lc", config, memoryUnit)
			defer s.finish(lc)
			check(awaited(t.Context(), time.Minute, func() error { // each has gone out twice, about
				out := uint64(0)
				for _, snapshot := range must(segment.Snapshots(filepath.Join(s.folder, "beside"), os.Getuid())) {
					for _, p := range snapshot.Peers {
						if p.Memory != nil {
							out += p.Memory.OutBytes
						}
					}
				}
				if out < 4*missing {
					return fmt.Errorf("%d bytes went out in a minute", out)
				}
				return nil
			}))
			check(awaited(t.Context(), answerLimit, func() error { // it may not be under the library yet
				_, err := callsThatWaited(config, lc)
				return err
			}))
		})
		if !strings.Contains(note, " GB of BE went out in ") || strings.HasPrefix(note, "0.0 GB") {
			t.Errorf("%q\n%s", note, &progress)
		}
	})
}

// A program under fire is evicted again and again, and what it computes wrong is found.
func TestMemoryFire(t *testing.T) {
	t.Parallel()
	s := fireSession(t, memoryFireSuite, smallGPU...)
	s.mechanisms = memoryMechanisms
	for program, want := range map[string]string{"kernels": "rounds under fire", "different-rounds": "as BE, undisturbed: 2 of 5 rounds different"} {
		var f *fire
		var row result.Row
		for seconds, most := 2., 64.; ; seconds *= 2 {
			one := *s
			one.report, one.options.Seconds = &result.Report{}, seconds
			f = &fire{session: &one, program: program, ordeal: evictions{}}
			succeed(t, func() { f.measure(t.Context(), "memory-fire-"+program) })
			row = one.report.Cases[0]
			if program != "kernels" || *row.Value >= 5 || seconds >= most { // a slow machine evicts less
				break
			}
		}
		if *row.Pass || row.Unit != "evictions" || !strings.Contains(row.Note, want) {
			t.Errorf("%s: %+v", program, row)
		}
		if program == "kernels" && (*row.Value < 5 || f.different || f.memory.InBytes == 0) {
			t.Errorf("%+v, %+v", row, f.memory)
		}
	}
}

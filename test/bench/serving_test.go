package bench

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// stubs are cases with servers that stand in for vLLM, on the simulated driver.
func stubs(t *testing.T, progress *bytes.Buffer, requests int, only ...string) (Suite, Options) {
	t.Helper()
	suite := suiteOfCases(t, result.ServingSuite)
	options := simulatedOptions(t, suite.Name, progress, only...)
	options.Requests, options.tests.beAlone = requests, 100*time.Millisecond
	options.tests.environment = slices.Concat(options.tests.environment, standIns(t), []string{"STUB_CUDA=1"})
	return suite, options
}

// A server that stands in for vLLM serves alone, beside best-effort work, and under an objective, on the simulated driver.
func TestServing(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	suite, options := stubs(t, &progress, 5, "vllm-12", "vllm-12-objectives")
	report, err := suite.Measure(t.Context(), options)
	if err != nil || len(report.Failed()) > 0 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	var systems []string
	for _, row := range report.Cases {
		systems = append(systems, row.System)
		s := row.Serving
		if row.Case != "vllm-12" || s == nil || row.LC == nil || row.LC.N != options.Requests || s.First.N != options.Requests || s.Failed != 0 || row.BE == nil {
			t.Fatalf("%+v\n%s", row, &progress)
		}
		ours := strings.HasPrefix(row.System, "gpreempt")
		if ours && (s.Steps == nil || s.Steps.Made < answerTokens) {
			t.Errorf("%s: %+v", row.System, s.Steps)
		}
		if objective := strings.HasPrefix(row.System, "gpreempt-"); objective != (s.BoundMs > 0) || objective && s.Steps.Found == 0 {
			t.Errorf("%s: bound %v ms, %+v", row.System, s.BoundMs, s.Steps)
		}
	}
	if want := []string{"alone", "default", "gpreempt", "gpreempt-1.5x", "gpreempt-2x", "gpreempt-3x"}; !slices.Equal(systems, want) {
		t.Errorf("systems %v, want %v", systems, want)
	}
	var table bytes.Buffer
	if err := report.Print(&table); err != nil || strings.Count(table.String(), "TTFT p99 ") != len(systems) {
		t.Errorf("%v\n%s", err, &table)
	}
}

// A server alone under the library is compared with one alone without it, and has no target.
func TestServingAloneUnderTheLibrary(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	_, options := stubs(t, &progress, 5, "vllm-12")
	s := prepared(t, options)
	s.report = &result.Report{}
	succeed(t, func() {
		defer withModels(t.Context(), s)()
		for _, c := range []servingCase{
			{"vllm-12", "vllm-12", vllm, wayPlain, steadyLoad(12), besideTraining, []servingSystem{{name: result.LCAlone, alone: true}}},
			{"vllm-12-alone", "vllm-12", vllm, wayLibrary, steadyLoad(12), besideTraining, []servingSystem{{name: result.ServingAloneUnderMPS, alone: true}}},
		} {
			c.measure(t.Context(), s, "")
		}
	})
	if len(s.report.Cases) != 2 {
		t.Fatalf("%+v\n%s", s.report.Cases, &progress)
	}
	alone, ours := s.report.Cases[0], s.report.Cases[1]
	if ours.Ratio == nil || ours.Serving.FirstRatio == nil || ours.Target != "" || ours.Pass != nil || ours.Serving.Steps != nil || ours.BE.Alone != alone.BE.Alone {
		t.Errorf("%+v, %+v", alone, ours)
	}
}

// Other work than training is measured beside the server in each way under MPS.
func TestServingBesideRivals(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	suite, options := stubs(t, &progress, 2, "vllm-6-offline", "vllm-6-offline-mps", "vllm-6-offline-objectives-mps")
	options.tests.tools = fakeMPS(t)
	options.tests.environment = append(options.tests.environment, smallGPU...)
	report, err := suite.Measure(t.Context(), options)
	if err != nil || len(report.Failed()) > 0 || len(report.Cases) != 1+len(mpsSystems)+4 {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	for _, row := range report.Cases {
		if objective := strings.HasPrefix(row.System, "gpreempt-mps-"); row.Case != "vllm-6-offline" || row.BE == nil || row.BE.Alone == 0 || objective != (row.Serving.BoundMs > 0) {
			t.Errorf("%+v\n%s", row, &progress)
		}
	}
}

// Beside such work an objective is to leave what other ways do, which are measured before it, or a line between two.
func TestMostOfRivals(t *testing.T) {
	row := func(name, system string, times, share float64) result.Row {
		return result.Row{Case: name, System: system, Ratio: &result.Ratio{P99: times}, BE: &result.Share{Share: share}, Serving: &result.Serving{Held: 1}}
	}
	failed := row("x", mpsOrdered, 1.1, .9)
	failed.Note = "1 of 100 requests failed"
	s := &session{options: Options{Folder: t.TempDir()}, report: &result.Report{}}
	c := servingCase{of: "x", way: wayBoth, beside: "gemmfp16"}
	judge := func(times float64) result.Row {
		return c.judged(s, row("x", "gpreempt-mps-2x", times, .45), servingSystem{slowdown: 2})
	}
	if err := caught(func() { judge(2) }); err == nil || !strings.Contains(err.Error(), "x under mps is what this is compared with") {
		t.Errorf("without rivals: %v", err)
	}
	part := &casePart{Part: "x-mps", file: Suite{Name: result.ServingSuite}.partPath(s.options.Folder, "x-mps")}
	part.Schema, part.Benchmark = 1, result.ServingSuite
	part.Cases = []result.Row{row("x", "mps-25", 1.2, .3), row("x", "mps-50", 1.5, .5), row("x", "mps", 2.5, .8), failed,
		row("x", "gpreempt-mps-1.2x", 1, .9), row("y", "mps", 1, .9), row("x", result.ServingAloneOfMPS, 1, .98)}
	if err := result.WriteJSON(part.file, part, ""); err != nil {
		t.Fatal(err)
	}
	for times, want := range map[float64]string{1.06: ", BE >= 0.09 of alone", 1.1: ", BE >= 0.15 of alone", 1.2: ", BE >= 0.3 of alone", 1.41: ", BE >= 0.44 of alone", 2: ", BE >= 0.65 of alone", 3: ", BE >= 0.8 of alone"} {
		succeed(t, func() {
			if judged := judge(times); judged.Target != "TPOT held by >= 99 % of requests"+want || *judged.Pass != (times < 1.5) {
				t.Errorf("at %v x: %q, %v", times, judged.Target, *judged.Pass)
			}
		})
	}
}

// Where the server ends without the library, its row says so, and the case is measured.
func TestServerThatEnds(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	const requests = 5
	suite, options := stubs(t, &progress, requests, "vllm-12")
	options.tests.environment = append(options.tests.environment, "STUB_SERVER_ANSWERS="+fmt.Sprint(requests*(len(warmUp)+1)+3)) // in the run beside best effort
	report, err := suite.Measure(t.Context(), options)
	if err != nil || len(report.Failed()) > 0 || len(report.Cases) != 2 || report.Cases[0].Serving == nil {
		t.Fatalf("%v, %+v\n%s", err, report, &progress)
	}
	if row := report.Cases[1]; row.System != "default" || row.Target != "" || row.Note != errServerEnded.Error() {
		t.Errorf("%+v\n%s", row, &progress)
	}
}

// Without the reference of the server alone, and without vLLM, cases say what they lack.
func TestServingLacks(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"": "vllm-12 is what this is compared with, and is not measured yet", "/nowhere": "has no vllm"} {
		var progress bytes.Buffer
		suite, options := stubs(t, &progress, 1, "vllm-12-objectives")
		if path != "" {
			options.tests.environment = append(options.tests.environment, "PYTHONPATH="+path)
		}
		report, err := suite.Measure(t.Context(), options)
		if err != nil || len(report.Cases) != 1 || !strings.Contains(report.Cases[0].Note+progress.String(), want) {
			t.Errorf("%s: %v, %+v\n%s", path, err, report, &progress)
		}
	}
}

func TestGenerate(t *testing.T) {
	const usage = `data: {"choices":[],"usage":{"completion_tokens":3}}` + "\n\n"
	token := `data: {"choices":[{"text":"w"}]}` + "\n\n"
	for name, test := range map[string]struct {
		status int
		body   string
		tokens int
		failed string
	}{
		"three tokens":          {200, token + token + token + usage + "data: [DONE]\n\n", 3, ""},
		"two tokens in a chunk": {200, token + token + usage + "data: [DONE]\n\n", 3, ""},
		"no token":              {200, usage, 0, "without tokens"},
		"cut off":               {200, token, 0, "without tokens"},
		"refused":               {429, "too many", 0, "429 Too Many Requests: too many"},
		"no JSON":               {200, "data: {\n\n", 0, "unexpected end"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			fmt.Fprint(w, test.body)
		}))
		g := generate(t.Context(), server.URL, []int{3}, 3)
		server.Close()
		if test.failed == "" && (g.err != nil || g.tokens != test.tokens) || test.failed != "" && (g.err == nil || !strings.Contains(g.err.Error(), test.failed)) {
			t.Errorf("%s: %d tokens, %v", name, g.tokens, g.err)
		}
	}
}

// A server may close a connection that was idle just as the next request is sent.
func TestGenerateOnAClosedConnection(t *testing.T) {
	var mutex sync.Mutex
	asked := map[string]bool{} // connections
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mutex.Lock()
		again := asked[r.RemoteAddr]
		asked[r.RemoteAddr] = true
		mutex.Unlock()
		if again {
			panic(http.ErrAbortHandler) // which closes it without an answer
		}
		fmt.Fprint(w, `data: {"choices":[{"text":"w"}]}`+"\n\n"+`data: {"choices":[],"usage":{"completion_tokens":1}}`+"\n\n")
	}))
	defer server.Close()
	for range 2 {
		if g := generate(t.Context(), server.URL, []int{3}, 1); g.err != nil {
			t.Error(g.err)
		}
	}
	if len(asked) != 2 {
		t.Errorf("%d connections instead of 2", len(asked))
	}
}

func TestSumUpGenerated(t *testing.T) {
	start := time.Now()
	ms := func(all ...int) (came []time.Duration) {
		for _, one := range all {
			came = append(came, time.Duration(one)*time.Millisecond)
		}
		return came
	}
	all := []generated{
		{arrived: start, came: ms(100, 110, 130), tokens: 3},                            // 15 ms each
		{arrived: start.Add(time.Second), came: ms(300, 310, 320), tokens: 3},           // its first token came late
		{arrived: start.Add(2 * time.Second), came: ms(100, 900, 1000), tokens: 10},     // 100 ms each: several in a chunk
		{arrived: start.Add(2 * time.Second), err: fmt.Errorf("refused"), came: ms(10)}, // counts in neither
	}
	s, each, failed, err := sumUpGenerated(all)
	if failed != 1 || s.Failed != 1 || err == nil || err.Error() != "refused" {
		t.Errorf("%d failed, %v", failed, err)
	}
	if each.N != 3 || each.MaxUs != 100_000 || each.P50Us != 15_000 || s.First.MaxUs != 300_000 {
		t.Errorf("%+v, %+v, %+v", each, s.First, s)
	}
	if held := within(all, 15*time.Millisecond); held != .5 {
		t.Errorf("%v within 15 ms, want half: the one that failed is not", held)
	}
}

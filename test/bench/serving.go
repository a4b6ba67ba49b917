package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpreempt/gpreempt/preempt/segment"
	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A model server beside best-effort work: alone, as the driver and MPS share a GPU, and under the library without an objective and with several.
// The model is of Llama's shape with 8 thousand million random weights: times do not depend on what they are.

const (
	servedModel        = "m"
	servingStarts      = 8 * time.Minute // of a server whose kernels are compiled
	servingMemory      = 30e9            // bytes of a server, and of best-effort work
	servingCacheMemory = 6 << 30         // of a server's keys and values
	servingSeed        = 7
	servingAlone       = 1.05 // p99 without an objective, of alone
	heldAtLeast        = .99  // of the requests
	stepsRight         = .01  // how far the number of steps that are found may be off
	aloneSeconds       = 8 * time.Second
)

// engine is a model server as its users start it.
type engine struct {
	name, module string   // of Python; the module has the server
	arguments    []string // beside those of all its kind
}

var (
	vllm        = engine{name: "vllm", module: "vllm"}
	vllmVariant = func(name string, arguments ...string) engine { return engine{"vllm-" + name, "vllm", arguments} }
)

func (e engine) command(python, model string, port int) []string {
	return append([]string{python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", servedModel,
		"--load-format", "dummy", "--max-model-len", "4096", "--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", strconv.Itoa(servingCacheMemory),
		"--no-enable-prefix-caching", "--max-num-seqs", "64", "--host", "127.0.0.1", "--port", strconv.Itoa(port)}, e.arguments...)
}

func (engine) environment() []string {
	return []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_USE_FLASHINFER_SAMPLER=0", "PYTHONUNBUFFERED=1"}
}

// stepsCounter is the metric by which the server counts its steps.
const stepsCounter = "vllm:iteration_tokens_total_count"

// way is how a server and what runs beside it share the GPU.
type way string

const (
	wayPlain   way = "plain"   // by the driver
	wayMPS     way = "mps"     // as clients of an MPS server
	wayLibrary way = "library" // under this library
)

// servingSystem is one of those that are compared.
type servingSystem struct {
	name        string
	alone       bool     // nothing runs beside the server
	environment []string // of best-effort work
	slowdown    float64  // the objective: so many times the p99 of the time per token alone; 0: none
	least       float64  // best-effort work is to have, of alone; 0: no target
}

// servingCase is a server under one load beside one kind of work, in one way. Its rows have the name of the case that measured it alone.
type servingCase struct {
	name, of string // of: the case that measures the server alone, which may be this one
	engine   engine
	way      way
	phases   []phase
	beside   string // arguments of be.py
	systems  []servingSystem
}

var (
	plainSystems = []servingSystem{{name: "alone", alone: true}, {name: "default"}}
	mpsSystems   = []servingSystem{{name: mpsSystem}, {name: mpsOrdered, environment: []string{lowerPriority}},
		{name: "mps-50", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}}, {name: "mps-25", environment: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"}}}
)

func objectiveSystem(slowdown, least float64) servingSystem {
	return servingSystem{name: fmt.Sprintf("gpreempt-%gx", slowdown), slowdown: slowdown, least: least}
}

func steadyLoad(perSecond float64) []phase {
	count := 300
	if perSecond <= 2 {
		count = 100 // longer runs say little more
	}
	return []phase{{perSecond, count}}
}

// allServing are the cases with a server each, ordered by what has to run, so that a server is started once where there is little memory.
var allServing = func() []servingCase {
	objectives := map[float64][]servingSystem{
		1:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		2:  {{name: "gpreempt"}, objectiveSystem(2, 0)},
		6:  {{name: "gpreempt"}, objectiveSystem(1.2, .30), objectiveSystem(1.5, .45), objectiveSystem(2, .60), objectiveSystem(3, .78)},
		12: {{name: "gpreempt"}, objectiveSystem(1.5, 0), objectiveSystem(2, .55), objectiveSystem(3, 0)},
	}
	var plain, mps, library []servingCase
	for _, perSecond := range []float64{6, 12, 2, 1} {
		of, load := fmt.Sprintf("vllm-%g", perSecond), steadyLoad(perSecond)
		plain = append(plain, servingCase{of, of, vllm, wayPlain, load, "train", plainSystems})
		mps = append(mps, servingCase{of + "-mps", of, vllm, wayMPS, load, "train", mpsSystems})
		library = append(library, servingCase{of + "-objectives", of, vllm, wayLibrary, load, "train", objectives[perSecond]})
	}
	plain = append(plain, servingCase{"vllm-6-infer", "vllm-6-infer", vllm, wayPlain, steadyLoad(6), "infer --same", plainSystems})
	library = append(library,
		servingCase{"vllm-6-infer-objectives", "vllm-6-infer", vllm, wayLibrary, steadyLoad(6), "infer --same", []servingSystem{{name: "gpreempt"}, objectiveSystem(2, .60)}},
		servingCase{"vllm-rise", "vllm-12", vllm, wayLibrary, []phase{{2, 20}, {12, 120}, {4, 40}}, "train", []servingSystem{objectiveSystem(2, 0)}})
	plain = append(plain, servingCase{"vllm-6-offline", "vllm-6-offline", vllm, wayPlain, steadyLoad(6), "offline --same", plainSystems})
	library = append(library, servingCase{"vllm-6-offline-objectives", "vllm-6-offline", vllm, wayLibrary, steadyLoad(6), "offline --same", []servingSystem{{name: "gpreempt"}, objectiveSystem(2, .60)}})
	for _, e := range []engine{vllmVariant("sync", "--no-async-scheduling"), vllmVariant("eager", "--enforce-eager"), vllmVariant("chunked", "--max-num-batched-tokens", "256"),
		vllmVariant("ngram", "--speculative-config", `{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4}`)} {
		library = append(library, servingCase{e.name + "-steps", "vllm-6", e, wayLibrary, []phase{{6, 100}}, "train", []servingSystem{objectiveSystem(2, 0)}})
	}
	return slices.Concat(plain, mps, library)
}()

func servingCases() (cases []Case) {
	for _, c := range allServing {
		seconds := 20.0
		for _, p := range c.phases {
			seconds += float64(len(c.systems)) * (float64(p.count)/p.perSecond + 5)
		}
		cases = append(cases, Case{c.name, "", []string{result.ServingSuite}, seconds, c.measure})
	}
	return append(cases, Case{"vllm-cost", fmt.Sprintf("an objective that lends nothing costs <= %g %% of TPOT", servingCost), []string{result.ServingSuite}, 150, measureServingCost})
}

// models are the model servers of the suite that run, by engine and way.
type models struct {
	folder, config string // of the model; of what runs under the library
	mps            *mpsDaemon
	running        map[string]*modelServer
	order          []string // of running, the latest used last
}

type modelServer struct {
	*daemon
	url string
}

// withModels makes a model, and starts a broker, by which objectives change while a server runs.
func withModels(ctx context.Context, s *session) (end func(), err error) {
	if s.python == "" {
		return nil, fmt.Errorf("the suite needs %s with PyTorch and vLLM; name it with --python", s.options.Python)
	}
	m := &models{folder: filepath.Join(s.files, "model"), running: map[string]*modelServer{}}
	if err := writeModel(m.folder); err != nil {
		return nil, err
	}
	program, err := beside("gpreemptd", s.options.Library)
	if err != nil {
		return nil, err
	}
	directory, policy := filepath.Join(s.folder, "broker"), filepath.Join(s.folder, "policy.toml")
	if err := os.WriteFile(policy, []byte("[default]\nlevel = \"lc\"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the policy: %w", err)
	}
	undo, err := s.configure(fmt.Sprintf("[segment]\nbroker = %q\n", directory))
	if err != nil {
		return nil, err
	}
	m.config = s.config
	undo()
	b, err := startBroker(ctx, program, directory, policy)
	if err != nil {
		return nil, err
	}
	s.models = m
	end = func() {
		for _, name := range slices.Clone(m.order) {
			m.stop(name)
		}
		if m.mps != nil {
			m.mps.stop()
		}
		b.kill()
	}
	if err := m.prepare(ctx, s); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// writeModel writes the shape of a model without weights, and a tokenizer of as many words.
func writeModel(folder string) error {
	const words = 32000
	vocabulary := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for i := len(vocabulary); i < words; i++ {
		vocabulary[fmt.Sprint("w", i)] = i
	}
	special := []map[string]any{}
	for i, name := range []string{"<unk>", "<s>", "</s>"} {
		special = append(special, map[string]any{"id": i, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	files := map[string]any{
		"config.json": map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "vocab_size": words, "max_position_embeddings": 8192,
			"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
			"tie_word_embeddings": false, "attention_bias": false, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
			"num_attention_heads": 32, "num_key_value_heads": 8},
		"tokenizer.json": map[string]any{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": special, "normalizer": nil,
			"pre_tokenizer": map[string]string{"type": "WhitespaceSplit"}, "post_processor": nil, "decoder": nil,
			"model": map[string]any{"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}},
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 8192},
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("write the model: %w", err)
	}
	for name, what := range files {
		text, err := json.Marshal(what)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("write the model: %w", err)
		}
	}
	return nil
}

func (m *models) stop(name string) {
	m.running[name].stop()
	delete(m.running, name)
	m.order = slices.DeleteFunc(m.order, func(other string) bool { return other == name })
}

func nameOf(e engine, w way) string { return e.name + " (" + string(w) + ")" }

// room is how many servers fit beside best-effort work.
func room(memory uint64) int { return max(int(float64(memory)/servingMemory)-1, 1) }

// server is a server of an engine in a way, which is started where it does not run. Those that were used longest ago make room for it.
func (m *models) server(ctx context.Context, s *session, e engine, w way) (*modelServer, error) {
	name := nameOf(e, w)
	m.order = slices.DeleteFunc(m.order, func(other string) bool { return other == name })
	server := m.running[name]
	if server != nil && server.hasEnded() {
		m.stop(name)
		server = nil
	}
	if server == nil {
		for len(m.order) >= room(s.info.MemoryBytes) {
			m.stop(m.order[0])
		}
		var err error
		if server, err = m.start(ctx, s, e, w); err != nil {
			return nil, err
		}
		m.running[name] = server
	}
	m.order = append(m.order, name)
	return server, nil
}

// prepare starts at once the first servers that are needed, as many as there is memory for: a start takes minutes. What goes wrong the case
// says that needs the server.
func (m *models) prepare(ctx context.Context, s *session) error {
	done, err := caseSuite{name: result.ServingSuite}.readParts(s.options.Folder)
	if err != nil {
		return err
	}
	first := map[string]servingCase{}
	for _, c := range allServing {
		picked := len(s.options.Only) == 0 || slices.Contains(s.options.Only, c.name)
		if p := done[c.name]; picked && len(first) < room(s.info.MemoryBytes) && (p == nil || len(p.Failed()) > 0) {
			first[nameOf(c.engine, c.way)] = c
		}
	}
	started := make(map[string]*modelServer)
	var mutex sync.Mutex // of started
	var starting sync.WaitGroup
	for name, c := range first {
		if _, err := m.environment(ctx, s, c.way); err != nil { // starts MPS
			return err
		}
		starting.Go(func() {
			server, err := m.start(ctx, s, c.engine, c.way)
			if err != nil {
				return // the case starts it again, and says what went wrong
			}
			mutex.Lock()
			defer mutex.Unlock()
			started[name] = server
		})
	}
	starting.Wait()
	m.running, m.order = started, slices.Sorted(maps.Keys(started))
	return nil
}

func (m *models) start(ctx context.Context, s *session, e engine, w way) (*modelServer, error) {
	look := exec.CommandContext(ctx, s.python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('"+e.module+"') is None)")
	look.Env = s.inherited()
	if look.Run() != nil {
		return nil, leftOut(s.options.Python + " has no " + e.module)
	}
	environment, err := m.environment(ctx, s, w)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	server := &modelServer{url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	began := time.Now()
	server.daemon, err = startDaemon(ctx, e.command(s.python, m.folder, port), append(environment, e.environment()...), servingStarts, func() bool { return healthy(ctx, server.url) })
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", nameOf(e, w), err)
	}
	s.log("%s: serves after %.0f s", nameOf(e, w), time.Since(began).Seconds())
	return server, nil
}

// environment is that of a server in a way.
func (m *models) environment(ctx context.Context, s *session, w way) ([]string, error) {
	one := *s
	one.config = ""
	switch w {
	case wayLibrary:
		one.config = m.config
		return one.environment("lc"), nil
	case wayMPS:
		if m.mps == nil {
			var err error
			if m.mps, err = s.startMPS(ctx, s.files); err != nil {
				return nil, err
			}
		}
		return append(one.environment(""), clientOfMPS(m.mps.pipes, os.Getenv(visibleDevicesVariable))...), nil
	}
	return one.environment(""), nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func healthy(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	answer, err := modelClient.Do(request)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// steps is how many steps the server has made; 0 where it does not say.
func (m *modelServer) steps(ctx context.Context) (uint64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("ask for the steps: %w", err)
	}
	answer, err := modelClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("ask for the steps: %w", err)
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), stepsCounter); found {
			count, err := strconv.ParseFloat(text[strings.LastIndexByte(text, ' ')+1:], 64)
			if err != nil {
				return 0, fmt.Errorf("read the steps: %w", err)
			}
			return uint64(count), nil
		}
	}
	return 0, nil
}

// command runs the command gpreempt.
func (s *session) command(ctx context.Context, config string, arguments ...string) ([]byte, error) {
	program, err := beside("gpreempt", s.options.Library)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = append(s.inherited(), "GPREEMPT_CONFIG="+config)
	text, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, lastLine(string(exit.Stderr)))
		}
		return nil, fmt.Errorf("gpreempt %s: %w", strings.Join(arguments, " "), err)
	}
	return text, nil
}

// peers are the processes of a server that use the GPU under the library.
func (m *models) peers(ctx context.Context, s *session) (peers []segment.Peer, err error) {
	text, err := s.command(ctx, m.config, "top", "--once", "--json")
	if err != nil {
		return nil, err
	}
	var seen struct {
		GPUs []struct {
			Peers []segment.Peer `json:"peers"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(text, &seen); err != nil {
		return nil, fmt.Errorf("read what gpreempt top says: %w", err)
	}
	for _, gpu := range seen.GPUs {
		for _, p := range gpu.Peers {
			if p.Level == 0 {
				peers = append(peers, p)
			}
		}
	}
	return peers, nil
}

// setObjective gives all servers under the library an objective, as people do.
func (m *models) setObjective(ctx context.Context, s *session, objective string) error {
	peers, err := m.peers(ctx, s)
	if err == nil && len(peers) == 0 {
		err = errors.New("set an objective: the server is not under the library")
	}
	for _, p := range peers {
		_, failed := s.command(ctx, m.config, "set", strconv.Itoa(int(p.Pid)), "--objective", objective)
		err = errors.Join(err, failed)
	}
	return err
}

// counted is what the library and the server counted of its steps so far.
func (m *models) counted(ctx context.Context, s *session, server *modelServer) (steps result.Steps, err error) {
	peers, err := m.peers(ctx, s)
	if err != nil {
		return steps, err
	}
	for _, p := range peers {
		if o := p.Objective; o != nil {
			steps.Found, steps.Means, steps.Over = steps.Found+o.Steps, steps.Means+o.Means, steps.Over+o.Over
			steps.LentMs, steps.Slots = steps.LentMs+float64(o.LentNs)/1e6, steps.Slots+o.Slots
		}
	}
	steps.Made, err = server.steps(ctx)
	return steps, err
}

func since(before, now result.Steps) *result.Steps {
	return &result.Steps{Found: now.Found - before.Found, Made: now.Made - before.Made, Means: now.Means - before.Means, Over: now.Over - before.Over,
		LentMs: result.Round(now.LentMs-before.LentMs, 1), Slots: now.Slots - before.Slots}
}

// reference is a server alone, as the case measured it that others are compared with.
func (s *session) reference(name string) (*result.Row, error) {
	for _, row := range s.report.Cases { // this case has measured it
		if row.Case == name && row.System == "alone" {
			return &row, nil
		}
	}
	parts, err := caseSuite{name: result.ServingSuite}.readParts(s.options.Folder)
	if err != nil {
		return nil, err
	}
	if p := parts[name]; p != nil {
		for _, row := range p.Cases {
			if row.System == "alone" && row.Serving != nil && row.BE != nil {
				return &row, nil
			}
		}
	}
	return nil, fmt.Errorf("%s is what this is compared with, and is not measured yet", name)
}

func (c servingCase) measure(ctx context.Context, s *session, _ string) error {
	if s.options.Requests > 0 {
		c.phases = slices.Clone(c.phases)
		for i := range c.phases {
			c.phases[i].count = s.options.Requests
		}
	}
	server, err := s.models.server(ctx, s, c.engine, c.way)
	if err != nil {
		return err
	}
	var be *worker
	defer func() {
		if be != nil {
			s.finish(be)
		}
	}()
	for i, system := range c.systems {
		if i == 0 || !slices.Equal(system.environment, c.systems[i-1].environment) {
			if be != nil {
				s.finish(be)
			}
			if be, err = c.startBE(ctx, s, system); err != nil {
				return err
			}
		}
		if err := c.measureSystem(ctx, s, server, be, system); err != nil {
			return fmt.Errorf("%s: %w", system.name, err)
		}
	}
	return nil
}

// row is the name of the rows: those of the same load beside the same work have one.
func (c servingCase) row() string {
	if of := strings.TrimSuffix(strings.TrimSuffix(c.name, "-mps"), "-objectives"); of == c.of {
		return of
	}
	return c.name
}

func (c servingCase) startBE(ctx context.Context, s *session, system servingSystem) (*worker, error) {
	one := script{name: "be.py", arguments: strings.Fields(c.beside),
		environment: append(slices.Clone(system.environment), "GPREEMPT_BENCH_MODEL="+s.models.folder)}
	if strings.HasPrefix(c.beside, "offline") {
		one.environment = append(one.environment, c.engine.environment()...)
		one.limits = limits{start: servingStarts, answer: answerLimit}
	}
	switch c.way {
	case wayLibrary:
		one.role, one.config = "be", s.models.config
	case wayMPS:
		one.environment = append(one.environment, clientOfMPS(s.models.mps.pipes, os.Getenv(visibleDevicesVariable))...)
	}
	workers, err := s.startScripts(ctx, one)
	if err != nil {
		return nil, err
	}
	return workers[0], nil
}

func (c servingCase) measureSystem(ctx context.Context, s *session, server *modelServer, be *worker, system servingSystem) error {
	var reference *result.Row
	var err error
	if !system.alone {
		if reference, err = s.reference(c.of); err != nil {
			return err
		}
	}
	bound := time.Duration(0)
	if system.slowdown > 0 {
		bound = time.Duration(system.slowdown * reference.LC.P99Us * float64(time.Microsecond))
	}
	var before result.Steps
	if c.way == wayLibrary {
		objective := "none"
		if bound > 0 {
			objective = "step=" + bound.Round(time.Microsecond).String()
		}
		if err := s.models.setObjective(ctx, s, objective); err != nil {
			return err
		}
		if before, err = s.models.counted(ctx, s, server); err != nil {
			return err
		}
	}
	row := result.Row{Case: c.row(), System: system.name}
	var all []generated
	serve := func() (r lcResult, err error) {
		from, err := monotonic()
		if err != nil {
			return r, err
		}
		if all, err = sendLoad(ctx, server.url, c.phases, servingSeed); err != nil {
			return r, err
		}
		to, err := monotonic()
		return lcResult{StartNs: uint64(from), EndNs: uint64(to)}, err
	}
	if system.alone {
		rate, err := s.beAlone(ctx, be, float64(aloneSeconds)/float64(4*time.Second))
		if err != nil {
			return err
		}
		row.BE = rateOf(rate, rate, stepsPerSecond)
		if _, err := serve(); err != nil {
			return err
		}
	} else {
		_, rate, err := be.beside(ctx, serve)
		if err != nil {
			return err
		}
		row.BE = rateOf(rate, reference.BE.Alone, stepsPerSecond)
	}
	serving, perToken, failed, why := sumUpGenerated(all)
	if perToken == nil {
		return fmt.Errorf("no request was answered: %w", why)
	}
	if failed > 0 {
		row.Note = fmt.Sprintf("%d of %d requests failed: %v", failed, len(all), why)
	}
	row.LC, row.Serving = perToken, serving
	if reference != nil {
		row.LCAlone, row.Ratio = reference.LC, result.RatioOf(row.LC, reference.LC)
		serving.FirstRatio = result.RatioOf(serving.First, reference.Serving.First)
	}
	if c.way == wayLibrary {
		now, err := s.models.counted(ctx, s, server)
		if err != nil {
			return err
		}
		serving.Steps = since(before, now)
	}
	if bound > 0 {
		serving.BoundMs, serving.Held = result.Round(float64(bound)/1e6, 3), result.Round(within(all, bound), 4)
	}
	s.add(c.judged(row, system, be.different))
	return nil
}

// judged is the row with the target of its system, where it has one. Different: so many of BE's results were.
func (c servingCase) judged(row result.Row, system servingSystem, different int) result.Row {
	switch {
	case different > 0:
		return row.Judged("BE's results are the same", false)
	case row.Note != "" && c.way == wayLibrary:
		return row.Judged("all requests are answered", false)
	case system.least > 0:
		return row.Judged(fmt.Sprintf("TPOT held by >= %g %% of requests, BE >= %g of alone", 100*heldAtLeast, system.least), row.Serving.Held >= heldAtLeast && row.BE.Share >= system.least)
	case c.way == wayLibrary && system.slowdown == 0:
		return row.Judged(fmt.Sprintf("TTFT and TPOT p99 <= %g x alone", servingAlone), row.Ratio.P99 <= servingAlone && row.Serving.FirstRatio.P99 <= servingAlone)
	case strings.HasSuffix(c.name, "-steps"):
		found := float64(row.Serving.Steps.Found) / float64(max(row.Serving.Steps.Made, 1))
		return row.Judged(fmt.Sprintf("steps found of those made: 1 +- %g", stepsRight), found >= 1-stepsRight && found <= 1+stepsRight)
	case system.slowdown > 0:
		return row.Judged(fmt.Sprintf("TPOT held by >= %g %% of requests", 100*heldAtLeast), row.Serving.Held >= heldAtLeast)
	}
	return row
}

const (
	servingCost       = 1.0 // percent
	servingCostRounds = 4   // of each, in turns
	servingCostCount  = 60  // requests of a round
)

// measureServingCost compares a server that has an objective, and nobody to lend to, with itself without one, in turns.
func measureServingCost(ctx context.Context, s *session, name string) error {
	server, err := s.models.server(ctx, s, vllm, wayLibrary)
	if err != nil {
		return err
	}
	all := map[string][]generated{}
	var costs []float64
	for round := range servingCostRounds {
		p50 := map[string]float64{}
		order := []string{"none", "slowdown=1.5"}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, objective := range order {
			if err := s.models.setObjective(ctx, s, objective); err != nil {
				return err
			}
			answers, err := sendLoad(ctx, server.url, []phase{{6, servingCostCount}}, servingSeed)
			if err != nil {
				return err
			}
			_, perToken, _, why := sumUpGenerated(answers)
			if perToken == nil {
				return why
			}
			p50[objective] = perToken.P50Us
			all[objective] = append(all[objective], answers...)
		}
		costs = append(costs, 100*(p50["slowdown=1.5"]/p50["none"]-1))
	}
	_, without, _, _ := sumUpGenerated(all["none"])
	serving, with, _, _ := sumUpGenerated(all["slowdown=1.5"])
	cost := result.Median(costs)
	row := result.Row{Case: name, System: "gpreempt", LC: with, LCAlone: without, Ratio: result.RatioOf(with, without), Serving: serving,
		Note: fmt.Sprintf("%+.2f %%, median of %d rounds, from %+.2f to %+.2f %%", cost, servingCostRounds, slices.Min(costs), slices.Max(costs))}
	s.add(row.Judged(fmt.Sprintf("an objective that lends nothing costs <= %g %% of TPOT", servingCost), cost <= servingCost))
	return nil
}

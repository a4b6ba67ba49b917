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

// The model servers of suite serving: how they are started, what they count, and what people tell the library of them.

// engine is a model server as its users start it.
type engine struct {
	name      string
	arguments []string // without the model, the host and the port
	model     string   // the option that names the model
	counter   string   // the metric by which the server counts its steps, or the beginning of several
}

var (
	vllm = engine{"vllm", []string{"-m", "vllm.entrypoints.openai.api_server", "--served-model-name", servedModel, "--load-format", "dummy",
		"--max-model-len", strconv.Itoa(servedTokens), "--gpu-memory-utilization", "0.2", "--kv-cache-memory-bytes", strconv.Itoa(servingCacheMemory),
		"--no-enable-prefix-caching", "--max-num-seqs", strconv.Itoa(servedAtOnce)}, "--model", "vllm:iteration_tokens_total_count"}
	sglang = engine{"sglang", []string{"-m", "sglang.launch_server", "--served-model-name", servedModel, "--load-format", "dummy",
		"--context-length", strconv.Itoa(servedTokens), "--mem-fraction-static", "0.5", "--max-total-tokens", strconv.Itoa(servingCacheTokens), "--disable-radix-cache",
		"--max-running-requests", strconv.Itoa(servedAtOnce), "--cuda-graph-max-bs-decode", strconv.Itoa(servedAtOnce), "--attention-backend", "triton", "--sampling-backend", "pytorch",
		"--grammar-backend", "none", "--mm-feature-transport", "cpu", "--disable-flashinfer-autotune", "--enable-metrics"}, "--model-path", "sglang:cuda_graph_passes_total"}
)

func (e engine) command(python, model string, port int) []string {
	return slices.Concat([]string{python}, e.arguments, []string{e.model, model, "--host", "127.0.0.1", "--port", strconv.Itoa(port)})
}

func (engine) environment() []string {
	return []string{"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "VLLM_USE_FLASHINFER_SAMPLER=0", "PYTHONUNBUFFERED=1"}
}

// warmUp is the load before a server counts as started: as many requests at once as it takes, and the usual load.
var warmUp = []phase{{1000, 64}, {12, 40}, {6, 20}}

const warmUpSeed = 1

// models are the model servers of the suite that run, by engine and way.
type models struct {
	folder, config string // of the model; of what runs under the library
	mps            *mpsDaemon
	running        map[string]*modelServer
	order          []string // of running, the latest used last
}

type modelServer struct {
	*daemon
	url, counter string
}

// withModels makes a model, and starts the servers that are needed first.
func withModels(ctx context.Context, s *session) (end func()) {
	if s.python == "" {
		fail("the suite needs %s with PyTorch and vLLM; name it with --python", s.options.Python)
	}
	m := &models{folder: filepath.Join(s.files, "model"), running: map[string]*modelServer{}}
	writeModel(m.folder, servedLayers)
	undo := s.configure(fmt.Sprintf("[objective]\nover_steps = %d\n", answerTokens)) // a request's mean is over so many
	m.config = s.config
	undo()
	s.models = m
	end = func() {
		for _, name := range slices.Clone(m.order) {
			m.stop(name)
		}
		if m.mps != nil {
			m.mps.stop()
		}
	}
	if err := caught(func() { m.prepare(ctx, s) }); err != nil {
		end()
		check(err)
	}
	return end
}

// writeModel writes the shape of a model without weights, and a tokenizer of as many words.
func writeModel(folder string, layers int) {
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
			"tie_word_embeddings": false, "attention_bias": false, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": layers,
			"num_attention_heads": 32, "num_key_value_heads": 8},
		"tokenizer.json": map[string]any{"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": special, "normalizer": nil,
			"pre_tokenizer": map[string]string{"type": "WhitespaceSplit"}, "post_processor": nil, "decoder": nil,
			"model": map[string]any{"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}},
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 8192},
	}
	check(os.MkdirAll(folder, 0o755))
	for name, what := range files {
		check(os.WriteFile(filepath.Join(folder, name), must(json.Marshal(what)), 0o644))
	}
}

func (m *models) stop(name string) {
	m.running[name].stop()
	delete(m.running, name)
	m.order = slices.DeleteFunc(m.order, func(other string) bool { return other == name })
}

func nameOf(e engine, w way) string { return e.name + " (" + string(w) + ")" }

// room is how many servers fit beside best-effort work.
func room(memory uint64) int { return max(int(float64(memory)/servingMemory)-1, 1) }

// server is a server of an engine in a way, which is started where it does not run. The servers that were used longest ago make room for it.
func (m *models) server(ctx context.Context, s *session, e engine, w way) *modelServer {
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
		server = m.start(ctx, s, e, w)
		m.running[name] = server
	}
	m.order = append(m.order, name)
	return server
}

// prepare starts at once the first servers that are needed, as many as there is memory for: a start takes minutes. A case whose server did
// not start tries again, and reports the error.
func (m *models) prepare(ctx context.Context, s *session) {
	done := must(Suite{Name: result.ServingSuite}.readParts(s.options.Folder))
	first := map[string]servingCase{}
	for _, c := range allServing {
		picked := len(s.options.Only) == 0 || slices.Contains(s.options.Only, c.name)
		if picked && len(first) < room(s.info.MemoryBytes) && !done[c.name].isDone(s.options) {
			first[nameOf(c.engine, c.way)] = c
		}
	}
	started := make(map[string]*modelServer)
	var mutex sync.Mutex // of started
	var starting sync.WaitGroup
	for name, c := range first {
		m.environment(ctx, s, c.way) // starts MPS
		starting.Go(func() {
			var server *modelServer
			if caught(func() { server = m.start(ctx, s, c.engine, c.way) }) != nil {
				return // the case starts it again, and says what went wrong
			}
			mutex.Lock()
			defer mutex.Unlock()
			started[name] = server
		})
	}
	starting.Wait()
	m.running, m.order = started, slices.Sorted(maps.Keys(started))
}

func (m *models) start(ctx context.Context, s *session, e engine, w way) *modelServer {
	s.needsModule(ctx, e.name)
	environment, port := m.environment(ctx, s, w), freePort()
	server := &modelServer{url: fmt.Sprintf("http://127.0.0.1:%d", port), counter: e.counter}
	began := time.Now()
	during("start "+nameOf(e, w), func() {
		server.daemon = must(startDaemon(ctx, e.command(s.python, m.folder, port), append(environment, e.environment()...), servingStarts, func() bool { return healthy(ctx, server.url) }))
	})
	// The first requests of each size compile kernels.
	answers, _, err := sendLoad(ctx, server.url, s.limited(warmUp...), warmUpSeed)
	if err == nil {
		_, _, _, err = sumUpGenerated(answers)
	}
	if err != nil {
		server.stop()
		fail("warm up %s: %w", nameOf(e, w), err)
	}
	s.log("%s: serves after %.0f s", nameOf(e, w), time.Since(began).Seconds())
	return server
}

// environment is that of a server in a way.
func (m *models) environment(ctx context.Context, s *session, w way) []string {
	role := ""
	if w.isLibrary() {
		role = "lc"
	}
	environment := s.configuredBy(m.config, role).environment(role)
	if !w.isMPS() {
		return environment
	}
	if m.mps == nil || m.mps.hasEnded() {
		m.mps = s.startMPS(ctx, s.files)
	}
	return append(environment, clientOfMPS(m.mps.pipes, os.Getenv(visibleDevicesVariable))...)
}

func freePort() int {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// get asks a server for what it has at a path.
func get(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return modelClient.Do(request)
}

func healthy(ctx context.Context, url string) bool {
	answer, err := get(ctx, url+"/health")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// steps is how many steps the server has made; 0 where it does not say.
func (m *modelServer) steps(ctx context.Context) (steps uint64) {
	answer := must(get(ctx, m.url+"/metrics"))
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), m.counter); found { // of several kinds, one a line
			steps += uint64(must(strconv.ParseFloat(text[strings.LastIndexByte(text, ' ')+1:], 64)))
		}
	}
	return steps
}

// peers are the processes of a server that use the GPU under the library.
func (m *models) peers(ctx context.Context, s *session) (peers []segment.Peer) {
	var seen struct {
		GPUs []struct {
			Peers []segment.Peer `json:"peers"`
		} `json:"gpus"`
	}
	text := s.command(ctx, m.config, "top", "--once", "--json")
	during("read what gpreempt top says", func() { check(json.Unmarshal(text, &seen)) })
	for _, gpu := range seen.GPUs {
		for _, p := range gpu.Peers {
			if p.Level == 0 {
				peers = append(peers, p)
			}
		}
	}
	return peers
}

// setObjective gives all servers under the library an objective, as people do.
func (m *models) setObjective(ctx context.Context, s *session, objective string) {
	peers := m.peers(ctx, s)
	if len(peers) == 0 {
		check(errors.New("set an objective: the server is not under the library"))
	}
	for _, p := range peers {
		s.command(ctx, m.config, "set", strconv.Itoa(int(p.Pid)), "--objective", objective)
	}
}

// counted is what the library and the server counted of its steps so far.
func (m *models) counted(ctx context.Context, s *session, server *modelServer) (steps result.Steps) {
	peers, now := m.peers(ctx, s), monotonic()
	steps.ServedMs = float64(now) / 1e6
	for _, p := range peers {
		steps.OpenMs += float64(p.Counters.WindowNs) / 1e6
		if p.WindowOpen {
			steps.OpenMs += (float64(now) - float64(p.WindowOpenedNs)) / 1e6
		}
		if p.Objective != nil {
			steps.Found += p.Objective.Steps
		}
	}
	steps.Made = server.steps(ctx)
	return steps
}

// since is what was counted between two looks.
func since(before, now result.Steps) *result.Steps {
	if now.Made < before.Made || now.OpenMs < before.OpenMs || now.Found < before.Found {
		check(errors.New("count steps: a process of the server has ended meanwhile"))
	}
	return &result.Steps{Found: now.Found - before.Found, Made: now.Made - before.Made, OpenMs: result.Round(now.OpenMs-before.OpenMs, 1),
		ServedMs: result.Round(now.ServedMs-before.ServedMs, 1)}
}

// command runs the command gpreempt.
func (s *session) command(ctx context.Context, config string, arguments ...string) []byte {
	command := exec.CommandContext(ctx, beside("gpreempt", s.options.Library), arguments...)
	command.Env = append(s.inherited(), "GPREEMPT_CONFIG="+config)
	text, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, lastLine(string(exit.Stderr)))
		}
		fail("gpreempt %s: %w", strings.Join(arguments, " "), err)
	}
	return text
}

// beside finds a program in the folder of this one, or else of the library.
func beside(name, library string) (path string) {
	own := must(os.Executable())
	for _, neighbour := range []string{own, library} {
		path = must(filepath.Abs(filepath.Join(filepath.Dir(neighbour), name)))
		if exists(path) {
			return path
		}
	}
	fail("%s is neither beside %s nor beside %s", name, own, library)
	return ""
}

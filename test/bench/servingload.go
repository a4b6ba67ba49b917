package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// Requests to a model server by the completions interface that OpenAI defined, streamed. Times to the first token (TTFT) and per output
// token (TPOT) are as vLLM's own benchmark defines them.

const (
	promptTokens, answerTokens = 512, 64
	firstToken, lastToken      = 3, 31999 // of the model's vocabulary that a prompt is made of
	generatedLimit             = 2 * time.Minute
)

// phase is a load: that many requests, Poisson.
type phase struct {
	perSecond float64
	count     int
}

// generated is what became of a request, counted from its arrival.
type generated struct {
	arrived time.Time
	came    []time.Duration // of each chunk of text
	tokens  int
	err     error
}

func (g *generated) first() time.Duration { return g.came[0] }

// perToken is the mean time between tokens after the first.
func (g *generated) perToken() time.Duration {
	return (g.came[len(g.came)-1] - g.first()) / time.Duration(max(g.tokens-1, 1))
}

// chunk is an event of the stream.
type chunk struct {
	Choices []struct {
		Text string `json:"text"`
	} `json:"choices"`
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// generate sends a request and reads all of its answer.
func generate(ctx context.Context, url string, prompt []int, tokens int) (g generated) {
	ctx, cancel := context.WithTimeout(ctx, generatedLimit)
	defer cancel()
	g.arrived = time.Now()
	g.err = caught(func() { during("ask the model server", func() { g.ask(ctx, url, prompt, tokens) }) })
	return g
}

// ask sends the request, and notes what comes when.
func (g *generated) ask(ctx context.Context, url string, prompt []int, tokens int) {
	body := must(json.Marshal(map[string]any{"model": servedModel, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "stream": true,
		"stream_options": map[string]bool{"include_usage": true}, "temperature": 0}))
	request := must(http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body)))
	request.Header.Set("Content-Type", "application/json")
	request.Header["Idempotency-Key"] = []string{} // not sent: the client asks again where the server has closed an idle connection
	answer := must(modelClient.Do(request))
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300)) // the status says that it failed
		fail("%s: %s", answer.Status, said)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		now := time.Since(g.arrived)
		text, isData := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !isData || bytes.Equal(text, []byte("[DONE]")) {
			continue
		}
		var c chunk
		if err := json.Unmarshal(text, &c); err != nil {
			fail("read %.80q: %w", text, err)
		}
		if len(c.Choices) > 0 {
			g.came = append(g.came, now)
		}
		if c.Usage != nil {
			g.tokens = c.Usage.CompletionTokens
		}
	}
	check(lines.Err())
	if len(g.came) == 0 || g.tokens == 0 {
		fail("an answer without tokens")
	}
}

// modelClient holds a connection for each request under way, of one server at a time.
var modelClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 10 * time.Second}}

// sendLoad sends requests as the phases say, and tells from when to when it sent and waited. The same seed gives the same prompts at the same
// times.
func sendLoad(ctx context.Context, url string, phases []phase, seed uint64) (all []generated, r lcResult, err error) {
	r.StartNs = uint64(monotonic())
	random := rand.New(rand.NewPCG(seed, 0))
	var under sync.WaitGroup
	var mutex sync.Mutex // of all
	due := time.Now()
	for _, p := range phases {
		for range p.count {
			if err = pause(ctx, time.Until(due)); err != nil {
				break
			}
			prompt := make([]int, promptTokens)
			for i := range prompt {
				prompt[i] = firstToken + random.IntN(lastToken-firstToken)
			}
			under.Go(func() {
				g := generate(ctx, url, prompt, answerTokens)
				mutex.Lock()
				all = append(all, g)
				mutex.Unlock()
			})
			due = due.Add(time.Duration(random.ExpFloat64() / p.perSecond * float64(time.Second)))
		}
	}
	under.Wait()
	r.EndNs = uint64(monotonic())
	return all, r, err
}

// sumUpGenerated sums requests up, and says how many failed and why one of them did.
func sumUpGenerated(all []generated) (s *result.Serving, perToken *result.Latency, failed int, err error) {
	var first, each []uint64
	for i := range all {
		g := &all[i]
		if g.err != nil {
			failed++
			if err == nil {
				err = g.err
			}
			continue
		}
		first, each = append(first, uint64(g.first())), append(each, uint64(g.perToken()))
	}
	return &result.Serving{Failed: failed, First: result.LatencyOf(first)}, result.LatencyOf(each), failed, err
}

// within is the part of requests whose tokens took no longer than a bound on average. One that failed did not.
func within(all []generated, bound time.Duration) float64 {
	held := 0
	for i := range all {
		if all[i].err == nil && all[i].perToken() <= bound {
			held++
		}
	}
	return float64(held) / float64(max(len(all), 1))
}

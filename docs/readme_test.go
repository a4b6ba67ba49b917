package docs

import (
	"regexp"
	"strings"
	"testing"
)

var generated = regexp.MustCompile(`(?s)<!-- results .*?<!-- end of results -->|!\[[^]]*\]`)

// The README is a front door: short, with the commands and answers that a new user needs, and no word of ours before it is explained.
func TestReadmeIsAFrontDoor(t *testing.T) {
	t.Parallel()
	const most = 120 // lines
	readme := text(t, "README.md")
	if n := strings.Count(readme, "\n"); n > most {
		t.Errorf("%d lines, must be at most %d", n, most)
	}
	prose := generated.ReplaceAllString(readme, "")
	for _, want := range []string{"make test ", "make demo", "gpreempt doctor", "doctor --report", "In an incident", "Maturity", "highest risk", "Whom to ask", "docs/where.md", "docs/api.md"} {
		if !strings.Contains(prose, want) {
			t.Errorf("no %q", want)
		}
	}
	if word := regexp.MustCompile("\\b(BLP|TSGs?|windows?|turns?)\\b|`auto`|\"auto\"").FindString(prose); word != "" {
		t.Errorf("%q is not explained here: say it otherwise, or in a document", word)
	}
	for name, means := range map[string]string{"LC": "LC is the latency-critical", "BE": "BE the best-effort", "TPOT": "TPOT is the time", "TTFT": "TTFT that to", "MPS": "MPS is NVIDIA"} {
		if at := regexp.MustCompile(`\b` + name + `\b`).FindStringIndex(readme); at == nil || !strings.HasPrefix(readme[at[0]:], means) {
			t.Errorf("%s does not begin with what it means", name)
		}
	}
	if model, plain := strings.Index(prose, "vllm serve"), strings.Index(prose, "serve.py"); model < 0 || model > plain {
		t.Error("the first example is not a served model")
	}
}

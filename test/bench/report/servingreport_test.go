package report

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpreempt/gpreempt/test/bench/result"
)

// A figure is not drawn of results that lack what it shows.
func TestFrontierLacks(t *testing.T) {
	for name, text := range map[string]string{"results": "", "this library": `{"cases": []}`, "a whole file": "{"} {
		folder := t.TempDir()
		if text != "" {
			if err := os.WriteFile(filepath.Join(folder, "x-"+result.ServingSuite+".json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Frontier(folder); err == nil {
			t.Errorf("a figure without %s", name)
		}
	}
}

// A figure that would look like the limit of its target has a digit more.
func TestFiguresTellTheVerdict(t *testing.T) {
	for _, test := range []struct {
		value  float64
		target string
		want   string
	}{{1.0512, "TTFT and TPOT p99 <= 1.05 x alone", "1.051"}, {1.0612, "TTFT and TPOT p99 <= 1.05 x alone", "1.06"}, {.448, "BE >= 0.45 of alone", "0.448"}, {.5, "", "0.50"}} {
		if got := figure(test.value, test.target); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

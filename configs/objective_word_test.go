package configs

import (
	"math/rand/v2"
	"testing"
)

// A word says what the text that it came from says, to its resolution.
func TestObjectiveWord(t *testing.T) {
	base := Default().Objective
	for _, value := range []string{"slowdown=1", "slowdown=1.5", "slowdown=20", "step=100us", "step=20ms", "step=60s", "step=0.123456s", "first=200ms,step=25ms,p=95",
		"first=60s,slowdown=20,p=99.99", "first=100us,slowdown=1.00001,p=50", "none"} {
		o, err := ParseObjective(base, value)
		if err != nil {
			t.Fatal(err)
		}
		word := o.Word()
		if again, ok := word.Objective(base); !ok || again != o || !word.Says() {
			t.Errorf("%s: %+v, %t", value, again, ok)
		}
		if again, err := ParseObjective(base, word.String()); err != nil || again.Word() != word {
			t.Errorf("%s: the text is %q, %v", value, word, err)
		}
	}
	if o, ok := ObjectiveWord(0).Objective(base); ok || o.Set() || ObjectiveWord(0).Says() || ObjectiveWord(0).String() != "" {
		t.Errorf("nothing: %+v, %t", o, ok)
	}
}

// Any word gives an objective that the configuration could have, or is refused.
func TestObjectiveWordIsUntrusted(t *testing.T) {
	sense := 0
	for range 100_000 {
		word := ObjectiveWord(rand.Uint64())
		if rand.N(2) == 0 { // about as many as make sense
			word = word&(1<<firstShift-1)%60_000_000 | rand.N(ObjectiveWord(600_000))<<firstShift | rand.N(ObjectiveWord(10_100))<<percentileShift | rand.N(ObjectiveWord(5))<<kindShift
		}
		o, ok := word.Objective(Objective{})
		if !ok {
			if word.String() != "" {
				t.Fatalf("%#x is refused, and shown as %s", word, word)
			}
			continue
		}
		sense++
		if o.Word() != word {
			t.Fatalf("%#x is %+v, which is %#x", word, o, o.Word())
		}
		if again, err := ParseObjective(Objective{}, word.String()); err != nil || o.Set() != again.Set() {
			t.Fatalf("%#x is shown as %q: %v", word, word, err)
		}
	}
	if sense < 1000 {
		t.Errorf("%d words made sense", sense)
	}
}

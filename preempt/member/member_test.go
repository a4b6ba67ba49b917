package member

import (
	"testing"
	"time"
)

// A broker that was lost is asked for often at first, and then less so.
func TestLonger(t *testing.T) {
	wait := firstAgain
	for sought := time.Duration(0); sought < hurry; sought += wait {
		if wait < firstAgain || wait > hurriedAgain {
			t.Fatalf("%v after %v", wait, sought)
		}
		wait = longer(wait, sought)
	}
	for range 10 {
		wait = longer(wait, hurry)
	}
	if wait != lastAgain {
		t.Errorf("%v in the end", wait)
	}
}

package learner

import "testing"

// Requests that come at very different times are worth a hint where a switch is dear, and not where it is cheap: what waiting for them costs is
// the same.
func TestAimDependsOnTheSwitch(t *testing.T) {
	errors := make([]float64, 64)
	for i := range errors {
		errors[i] = float64(i-32) * 20 * us
	}
	const budget = 20 * us
	cheap, ok := aim(errors, budget, 100*us)
	if ok {
		t.Errorf("a switch of 100 us: %+v", cheap)
	}
	dear, ok := aim(errors, budget, 1000*us)
	if !ok || dear.to <= dear.from {
		t.Errorf("a switch of 1 ms: %+v, %v", dear, ok)
	}
}

// window_word_test.c - with preempt/process/process.c.
//
// Each event in each state, and a swap from a word that is another by then.
#include "preempt/process/process.h"
#include "test/units/check.h"

static const enum gp_window_state after[][4] = {
	// of CLOSED, OPENING, GRACE, OPEN
	[GP_SUBMITTED] = {GP_OPENING, GP_OPENING, GP_OPEN, GP_OPEN},
	[GP_FINISHED] = {GP_CLOSED, GP_CLOSED, GP_GRACE, GP_GRACE},
	[GP_CALLED] = {GP_CLOSED, GP_OPENING, GP_OPEN, GP_OPEN},
	[GP_OPENS] = {GP_GRACE, GP_OPEN, GP_GRACE, GP_OPEN},
	[GP_CLOSES] = {GP_CLOSED, GP_OPENING, GP_CLOSED, GP_OPEN},
	[GP_ENDS] = {GP_CLOSED, GP_OPENING, GP_CLOSED, GP_OPENING},
};

int main(void)
{
	const uint64_t counts[] = {0, 1, 1ull << 40, UINT64_MAX >> GP_WINDOW_BITS};
	for (int i = 0; i < 4; i++)
		for (uint64_t state = GP_CLOSED; state <= GP_OPEN; state++)
			for (int event = GP_SUBMITTED; event <= GP_ENDS; event++) {
				uint64_t word = counts[i] << GP_WINDOW_BITS | state;
				uint64_t counted = counts[i] + (event == GP_SUBMITTED);
				_Atomic uint64_t window = word;
				bool changes = event == GP_SUBMITTED || after[event][state] != state;
				CHECK(gp_window_change(&window, word, event) == changes);
				CHECK(gp_window_state(window) == after[event][state]);
				CHECK(gp_window_activity(window) == (counted & UINT64_MAX >> GP_WINDOW_BITS));

				// Another thread has submitted since the word was looked at.
				window = gp_window_after(word, GP_SUBMITTED);
				uint64_t is = window;
				CHECK(!gp_window_change(&window, word, event) && window == is);
			}
	return 0;
}

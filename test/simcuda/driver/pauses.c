// pauses.c - what tests ask for: the GPU, or a thread of the program, gets nowhere for a while.
#define _GNU_SOURCE
#include "sim.h"

#include <time.h>

static _Atomic uint64_t away_until;
static _Thread_local uint64_t late_ns;
static _Thread_local _Atomic uint32_t *launch_word, *record_word, *answer_word;

static void sleep_until(uint64_t at)
{
	struct timespec t = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

// From now on, for so long, nothing of this process is carried out.
API void simcuda_gpu_away(unsigned ms)
{
	pthread_mutex_lock(&sim_lock); // the executors are between two looks, or in a transfer
	away_until = now_ns() + ms * 1000000ull;
	sim_unlock();
}

// The next time that cuEventQuery finds an event of the calling thread's not reached, it says so that much later.
API void simcuda_answer_late(unsigned ms) { late_ns = ms * 1000000ull; }

// The next launch of a kernel by the calling thread, or its next wait of a stream for an event, sets the word to 1. Before it is queued, it
// waits until the word is 2.
API void simcuda_launch_waits(_Atomic uint32_t *word) { launch_word = word; }

// The same of the calling thread's next record of an event.
API void simcuda_record_waits(_Atomic uint32_t *word) { record_word = word; }

// The next answer of cuStreamQuery or cuEventQuery to the calling thread sets the word to 1. Before the call returns, it waits until the
// word is 2.
API void simcuda_answer_waits(_Atomic uint32_t *word) { answer_word = word; }

// With sim_lock held, which is given up meanwhile.
void pause_gpu(void)
{
	for (uint64_t until; (until = away_until) > now_ns();) {
		sim_unlock();
		sleep_until(until);
		pthread_mutex_lock(&sim_lock);
	}
}

void pause_answer(void)
{
	uint64_t ns = late_ns;
	late_ns = 0;
	if (ns)
		sleep_until(now_ns() + ns);
}

static void wait_at(_Atomic uint32_t **word_of_thread)
{
	_Atomic uint32_t *word = *word_of_thread;
	*word_of_thread = NULL;
	if (word)
		*word = 1;
	while (word && *word != 2)
		sleep_until(now_ns() + 50000);
}

CUresult pause_answered(CUresult answer)
{
	wait_at(&answer_word);
	return answer;
}

void pause_launch(void) { wait_at(&launch_word); }

void pause_record(void) { wait_at(&record_word); }

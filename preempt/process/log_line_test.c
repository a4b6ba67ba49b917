// log_line_test.c - with preempt/process/log_line.c preempt/process/process.c.
//
// Several threads say several texts each, in another order, while one writes. Ends well or says what is wrong.
#define _GNU_SOURCE
#include "preempt/process/process.h"
#include "test/units/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, TEXTS = 40, ROUNDS = 50 };

static void *say(void *argument)
{
	char text[300];
	for (uintptr_t i = 0; i < ROUNDS * TEXTS; i++) {
		// They differ at their end, and are longer than a line; of number 0 it is the part that is cut off.
		uintptr_t n = (i * 7 + (uintptr_t)argument * 11) % TEXTS;
		memset(text, 'x', sizeof text);
		snprintf(text + (n ? 240 : 280), n ? 60 : 20, "%d", (int)n);
		gp_log_line(text);
	}
	return NULL;
}

int main(void)
{
	pthread_t thread[THREADS];
	bool seen[TEXTS] = {false};
	const char *line;
	uint32_t written = 0;

	CHECK(!gp_log_next(0));
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, say, (void *)i);
	while (written < TEXTS) {
		uint32_t events = gp_events;
		if (!(line = gp_log_next(written))) {
			gp_futex_wait(&gp_events, events, 0, false); // a thread that says something wakes the one that writes
			continue;
		}
		size_t length = strlen(line);
		int n = length < 255 ? atoi(line + 240) : 0;
		CHECK(n >= 0 && n < TEXTS && !seen[n] && (n == 0) == (length == 255));
		seen[n] = true;
		written++;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	CHECK(!gp_log_next(written));

	// There is an end to it.
	for (int i = 0; i < 1000; i++) {
		char text[20];
		snprintf(text, sizeof text, "another %d", i);
		gp_log_line(text);
	}
	const char *last = NULL;
	for (; (line = gp_log_next(written)); written++)
		last = line;
	CHECK(written == 64 && !strcmp(last, "more is wrong than is said here"));
	return 0;
}

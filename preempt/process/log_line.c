// log_line.c - lines for the library's log, from any thread of the program.
//
// A thread of the program writes no log itself: the log is the helper's. It leaves the line here, and the helper writes it. Each text is said once, so the lines are a list that only grows.
#define _GNU_SOURCE
#include "preempt/process/process.h"

#include <string.h>
#include <unistd.h>

enum { LINES = 64, LINE_BYTES = 256, EXIT_NS = 1000000000 };

static struct {
	pthread_mutex_t lock;           // of what is added
	_Atomic uint32_t said, written; // lines; written is a futex
	pid_t process;                  // that said the last one
	char line[LINES][LINE_BYTES];
} log_lines = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool add(const char *text)
{
	uint32_t said = log_lines.said;
	for (uint32_t i = 0; i < said; i++)
		if (!strncmp(log_lines.line[i], text, LINE_BYTES - 1))
			return false;
	if (said == LINES)
		return false;
	if (said == LINES - 1)
		text = "more is wrong than is said here";
	strncpy(log_lines.line[said], text, LINE_BYTES - 1);
	log_lines.process = getpid();
	log_lines.said = said + 1;
	return true;
}

void gp_log_line(const char *text)
{
	pthread_mutex_lock(&log_lines.lock);
	bool news = add(text);
	pthread_mutex_unlock(&log_lines.lock);
	if (news)
		gp_notify();
}

uint32_t gp_log_written(void) { return log_lines.written; }

const char *gp_log_next(uint32_t written)
{
	if (written != log_lines.written) {
		log_lines.written = written;
		gp_futex_wake(&log_lines.written, 1, false);
	}
	return written < log_lines.said ? log_lines.line[written] : NULL;
}

// As the program ends, waits until the lines that were left last are written. In a forked child no thread writes them.
static __attribute__((destructor)) void program_ends(void)
{
	uint64_t end = gp_now_ns() + EXIT_NS, now;
	for (uint32_t written; (written = log_lines.written) < log_lines.said && log_lines.process == getpid() &&
			       (now = gp_now_ns()) < end && !gp_helper_gone;)
		gp_futex_wait(&log_lines.written, written, end - now, false);
}

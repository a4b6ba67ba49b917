// main.c - runs each section in a process of its own, and writes their findings. A test of driver and machine, without the library.
//
//	PROBE [--quick] [--mps] [--only SECTION[,SECTION...]] [--seconds N] [--slow N] [--json FILE] [--list]
//
// --slow: all bounds on time are so many times as long, for a machine that does other things, too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

struct plan plan;
bool under_mps;
double slowness = 1;

// Reads lines until the end of the output, or the time is over.
static bool collect(int fd, double until_us)
{
	static char buffer[1 << 16];
	size_t used = 0;
	for (;;) {
		int left_ms = (int)((until_us - now_us()) / 1000);
		struct pollfd p = {.fd = fd, .events = POLLIN};
		if (left_ms <= 0 || poll(&p, 1, left_ms) == 0)
			return false;
		ssize_t got = read(fd, buffer + used, sizeof buffer - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return true;
		used += (size_t)got;
		char *line = buffer, *end;
		while ((end = memchr(line, '\n', used - (size_t)(line - buffer)))) {
			*end = 0;
			take_line(line);
			line = end + 1;
		}
		used -= (size_t)(line - buffer);
		memmove(buffer, line, used);
		if (used == sizeof buffer)
			used = 0; // no line of ours
	}
}

static char *format_ending(int status, bool in_time, double seconds)
{
	char *ending = NULL;
	int made = -1;
	if (!in_time)
		made = asprintf(&ending, "took more than %.0f s", seconds);
	else if (WIFSIGNALED(status))
		made = asprintf(&ending, "signal %d after %.1f s", WTERMSIG(status), seconds);
	else if (WEXITSTATUS(status))
		made = asprintf(&ending, "failed after %.1f s", seconds);
	else
		made = asprintf(&ending, "done in %.1f s", seconds);
	return made < 0 ? NULL : ending;
}

// The section's process leads a group, so that what it starts ends with it.
static char *run_section(const struct section *s, double limit)
{
	int out[2];
	if (pipe2(out, O_CLOEXEC))
		give_up("no pipe: %s", strerror(errno));
	double began = now_us();
	fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		give_up("fork: %s", strerror(errno));
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out[1], 1);
		if (probe.settle)
			probe.settle(s->name);
		driver_begin();
		s->run();
		fflush(stdout);
		_exit(0); // contexts end with the process
	}
	setpgid(pid, pid);
	close(out[1]);
	bool in_time = collect(out[0], began + limit * 1e6);
	close(out[0]);
	if (!in_time)
		kill(-pid, SIGKILL);
	int status = 0;
	waitpid(pid, &status, 0);
	kill(-pid, SIGKILL); // a second process that it left
	return format_ending(status, in_time, (now_us() - began) / 1e6);
}

// ---- options

static bool in_list(const char *list, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = list; (at = strstr(at, name)); at += length)
		if ((at == list || at[-1] == ',') && (at[length] == 0 || at[length] == ','))
			return true;
	return false;
}

static void check_list(const char *list)
{
	char copy[256];
	snprintf(copy, sizeof copy, "%s", list);
	for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
		bool known = false;
		for (int i = 0; i < probe.sections; i++)
			known |= strcmp(probe.section[i].name, name) == 0;
		if (!known)
			give_up("no section %s; --list names them", name);
	}
}

static struct options {
	const char *only, *json;
	bool mps, neighbour;
	double seconds;
} options;

static void list_sections(void)
{
	for (int i = 0; i < probe.sections; i++)
		printf("%-14s %3.0f s  %s\n", probe.section[i].name, probe.section[i].seconds, probe.section[i].about);
	exit(0);
}

static void read_options(int count, char **arguments)
{
	bool seconds_given = false;
	plan = probe.full;
	for (int i = 1; i < count; i++) {
		const char *option = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
		if (strcmp(option, "--quick") == 0)
			plan = probe.quick;
		else if (strcmp(option, "--mps") == 0)
			options.mps = true;
		else if (strcmp(option, "--neighbour") == 0)
			options.neighbour = true;
		else if (strcmp(option, "--only") == 0 && value)
			options.only = arguments[++i];
		else if (strcmp(option, "--seconds") == 0 && value)
			options.seconds = atof(arguments[++i]), seconds_given = true;
		else if (strcmp(option, "--slow") == 0 && value && atof(value) >= 1)
			slowness = atof(arguments[++i]);
		else if (strcmp(option, "--json") == 0 && value)
			options.json = arguments[++i];
		else if (strcmp(option, "--list") == 0)
			list_sections();
		else
			give_up("usage: %s [--quick] [--mps] [--only SECTION,...] [--seconds N] [--slow N] [--json "
				"FILE] "
				"[--list]",
				probe.name);
	}
	if (!seconds_given)
		options.seconds = probe.seconds * slowness;
}

// Runs the sections that are asked for; returns how many there were.
static int run_sections(struct ending *ending, double began)
{
	int ran = 0;
	for (int i = 0; i < probe.sections; i++) {
		const struct section *s = &probe.section[i];
		double left = options.seconds - (now_us() - began) / 1e6, most = s->seconds * slowness;
		if (options.only && !in_list(options.only, s->name))
			continue;
		ending[ran] = (struct ending){s->name, "not run: no time"};
		if (left >= 5) {
			ending[ran].text = run_section(s, left < most ? left : most);
			fprintf(stderr, "%-14s %s\n", s->name, ending[ran].text);
		}
		ran++;
	}
	return ran;
}

int main(int count, char **arguments)
{
	read_options(count, arguments);
	if (options.only)
		check_list(options.only);
	if (probe.prepare)
		probe.prepare();
	under_mps = options.mps;
	if (options.neighbour) {
		driver_begin();
		probe.neighbour();
		return 0;
	}
	double began = now_us();
	struct ending ending[probe.sections];
	if (options.mps)
		start_mps();
	int failed = 0, ran = run_sections(ending, began);
	for (int i = 0; i < ran; i++)
		failed |= strncmp(ending[i].text, "done", 4) != 0;
	if (options.mps)
		stop_mps();
	FILE *out = options.json ? fopen(options.json, "w") : stdout;
	if (!out)
		give_up("%s: %s", options.json, strerror(errno));
	write_json(out, options.mps ? "MPS" : probe.mode, (now_us() - began) / 1e6, ending, ran);
	if (options.json && fclose(out))
		give_up("%s: %s", options.json, strerror(errno));
	write_table(ending, ran);
	return failed;
}

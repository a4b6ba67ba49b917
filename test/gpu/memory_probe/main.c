// main.c - build/memory-probe: what the driver and the machine do to memory that comes and goes. It runs each section in a process
// of its own and prints what they found as one JSON object and as a table; a test of driver and machine, without the library.
//
//	memory-probe [--quick] [--mps] [--only SECTION[,SECTION...]] [--seconds N] [--json FILE] [--list]
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "probe.h"

struct plan plan = {.seconds = .3, .samples = 2000, .bulk = 4 * GIB, .touchers = 8};

static const struct section {
	const char *name;
	void (*run)(void);
	double seconds; // that it may take
	const char *about;
} sections[] = {
	{"machine", section_machine, 10, "device, driver, sizes"},
	{"costs", section_costs, 10, "calls that are made often while nothing happens"},
	{"attributes", section_attributes, 15, "what the driver says of memory of each kind; pitches"},
	{"rules", section_rules, 15, "which calls on mapped memory the driver takes"},
	{"graphs", section_graphs, 15, "a graph whose memory was mapped again"},
	{"handles", section_handles, 45, "create, map, access, unmap, release, by size; cuMemAlloc, cuMemFree"},
	{"scrubbing", section_scrubbing, 30, "how long released memory cannot be had"},
	{"threads", section_threads, 15, "moving memory while another thread launches"},
	{"copies", section_copies, 75, "pinned copies by chunk, in flight, and NUMA node"},
	{"beside-copies", section_beside_copies, 60, "small copies of the same and another process beside a bulk"},
	{"neighbour", section_neighbour, 45, "a second process beside calls that move memory"},
	{"pinning", section_pinning, 60, "page-locking by piece, threads and pages; a second process beside it"},
};
enum { SECTIONS = sizeof sections / sizeof *sections };

// What was found.
struct line { char *field[6]; };
static struct line *figures, *facts;
static size_t figure_count, fact_count;
static char *endings[SECTIONS]; // how each section ended

static struct line *add_line(struct line **lines, size_t *count)
{
	*lines = realloc(*lines, (*count + 1) * sizeof **lines);
	if (!*lines)
		give_up("no memory");
	struct line *one = &(*lines)[(*count)++];
	memset(one, 0, sizeof *one);
	return one;
}

static void take_line(char *text_line)
{
	char *rest = text_line, *word = strsep(&rest, "\t");
	bool is_figure = strcmp(word, "figure") == 0;
	if (!is_figure && strcmp(word, "fact") != 0)
		return; // a warning of somebody's
	struct line *one = is_figure ? add_line(&figures, &figure_count) : add_line(&facts, &fact_count);
	for (int i = 0; i < 6 && rest; i++)
		one->field[i] = strdup(strsep(&rest, "\t"));
}

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

static void json_text(FILE *out, const char *value)
{
	fputc('"', out);
	for (const char *c = value ? value : ""; *c; c++) {
		if (*c == '"' || *c == '\\')
			fputc('\\', out);
		if ((unsigned char)*c >= ' ')
			fputc(*c, out);
	}
	fputc('"', out);
}

static void write_json(FILE *out, bool mps, double seconds)
{
	fprintf(out, "{\"schema\": 1, \"mode\": \"%s\", \"quick\": %s, \"seconds\": %.1f,\n \"sections\": {",
		mps ? "MPS" : "time-sliced", plan.quick ? "true" : "false", seconds);
	bool first = true;
	for (int i = 0; i < SECTIONS; i++)
		if (endings[i]) {
			fprintf(out, "%s\n  \"%s\": ", first ? "" : ",", sections[i].name);
			json_text(out, endings[i]);
			first = false;
		}
	fprintf(out, "},\n \"figures\": [");
	for (size_t i = 0; i < figure_count; i++) {
		char **f = figures[i].field;
		fprintf(out, "%s\n  {\"name\": ", i ? "," : "");
		json_text(out, f[0]);
		fprintf(out, ", \"unit\": ");
		json_text(out, f[1]);
		fprintf(out, ", \"n\": %s, \"p50\": %s, \"p99\": %s, \"max\": %s}", f[2], f[3], f[4], f[5]);
	}
	fprintf(out, "],\n \"facts\": [");
	for (size_t i = 0; i < fact_count; i++) {
		fprintf(out, "%s\n  {\"name\": ", i ? "," : "");
		json_text(out, facts[i].field[0]);
		fprintf(out, ", \"value\": ");
		json_text(out, facts[i].field[1]);
		fprintf(out, "}");
	}
	fprintf(out, "]}\n");
}

static void write_table(void)
{
	printf("\n%-110s %8s %7s %12s %12s %12s\n", "figure", "unit", "n", "p50", "p99", "max");
	for (size_t i = 0; i < figure_count; i++) {
		char **f = figures[i].field;
		printf("%-110s %8s %7s %12s %12s %12s\n", f[0], f[1], f[2], f[3], f[4], f[5]);
	}
	printf("\n");
	for (size_t i = 0; i < fact_count; i++)
		printf("%-90s %s\n", facts[i].field[0], facts[i].field[1]);
	printf("\n");
	for (int i = 0; i < SECTIONS; i++)
		if (endings[i])
			printf("%-14s %s\n", sections[i].name, endings[i]);
}

// ---- an MPS server of our own

#define TOOL "nvidia-cuda-mps-control"
static char pipes[256];
static pid_t daemon_pid;

static pid_t start_tool(bool foreground, int input)
{
	pid_t pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(input, 0);
		if (foreground)
			execlp(TOOL, TOOL, "-f", NULL);
		else
			execlp(TOOL, TOOL, NULL);
		execl("/usr/local/nvidia/bin/" TOOL, TOOL, foreground ? "-f" : NULL, NULL);
		_exit(127);
	}
	return pid;
}

static void start_mps(void)
{
	struct stat found;
	const char *folder = getenv("TMPDIR");
	snprintf(pipes, sizeof pipes, "%s/memory-probe-XXXXXX", folder ? folder : "/tmp");
	if (!mkdtemp(pipes))
		give_up("no folder for MPS: %s", strerror(errno));
	setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
	setenv("CUDA_MPS_LOG_DIRECTORY", pipes, 1);
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	daemon_pid = start_tool(true, nothing);
	close(nothing);
	for (double began = now_us(); now_us() - began < 10e6; pause_us(50e3)) {
		if (waitpid(daemon_pid, NULL, WNOHANG) == daemon_pid)
			give_up("no MPS server: %s cannot be run or has ended", TOOL);
		if (stat(text("%s/control", pipes), &found) == 0)
			return;
	}
	kill(-daemon_pid, SIGKILL);
	give_up("no MPS server: no control pipe in %s", pipes);
}

static void await(pid_t pid, double seconds)
{
	for (double began = now_us(); now_us() - began < seconds * 1e6; pause_us(50e3))
		if (waitpid(pid, NULL, WNOHANG) == pid)
			return;
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *at) { return remove(path); }

static void stop_mps(void)
{
	int order[2];
	if (pipe2(order, O_CLOEXEC))
		give_up("no pipe: %s", strerror(errno));
	pid_t pid = start_tool(false, order[0]);
	dprintf(order[1], "quit -t 5\n");
	close(order[0]);
	close(order[1]);
	await(pid, 8);
	await(daemon_pid, 5);
	kill(-daemon_pid, SIGKILL); // its server
	nftw(pipes, remove_one, 8, FTW_DEPTH | FTW_PHYS);
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
		for (int i = 0; i < SECTIONS; i++)
			known |= strcmp(sections[i].name, name) == 0;
		if (!known)
			give_up("no section %s; --list names them", name);
	}
}

static void be_quick(void)
{
	plan = (struct plan){.quick = true, .seconds = .02, .samples = 20, .bulk = 8 * MIB, .touchers = 2};
}

int main(int count, char **arguments)
{
	const char *only = NULL, *json = NULL;
	bool mps = false, neighbour = false;
	double limit = 225;
	for (int i = 1; i < count; i++) {
		const char *option = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
		if (strcmp(option, "--quick") == 0)
			be_quick();
		else if (strcmp(option, "--mps") == 0)
			mps = true;
		else if (strcmp(option, "--neighbour") == 0)
			neighbour = true;
		else if (strcmp(option, "--only") == 0 && value)
			only = arguments[++i];
		else if (strcmp(option, "--seconds") == 0 && value)
			limit = atof(arguments[++i]);
		else if (strcmp(option, "--json") == 0 && value)
			json = arguments[++i];
		else if (strcmp(option, "--list") == 0) {
			for (int s = 0; s < SECTIONS; s++)
				printf("%-14s %3.0f s  %s\n", sections[s].name, sections[s].seconds, sections[s].about);
			return 0;
		} else
			give_up("usage: memory-probe [--quick] [--mps] [--only SECTION,...] [--seconds N] [--json "
				"FILE] [--list]");
	}
	if (neighbour)
		return neighbour_main();
	if (only)
		check_list(only);
	size_t room = host_available() / 3; // both ways, and one of them once more
	if (plan.bulk > room)
		plan.bulk = room / (2 * MIB) * (2 * MIB);
	double began = now_us();
	if (mps)
		start_mps();
	int failed = 0;
	for (int i = 0; i < SECTIONS; i++) {
		double left = limit - (now_us() - began) / 1e6;
		if (only && !in_list(only, sections[i].name))
			continue;
		if (left < 5) {
			endings[i] = "not run: no time";
			failed = 1;
			continue;
		}
		endings[i] = run_section(&sections[i], left < sections[i].seconds ? left : sections[i].seconds);
		failed |= strncmp(endings[i], "done", 4) != 0;
		fprintf(stderr, "%-14s %s\n", sections[i].name, endings[i]);
	}
	if (mps)
		stop_mps();
	FILE *out = json ? fopen(json, "w") : stdout;
	if (!out)
		give_up("%s: %s", json, strerror(errno));
	write_json(out, mps, (now_us() - began) / 1e6);
	if (json && fclose(out))
		give_up("%s: %s", json, strerror(errno));
	write_table();
	return failed;
}

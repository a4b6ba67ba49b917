// faults.c - calls that fail, at which the process is killed, or that take time, as SIMCUDA_FAIL, SIMCUDA_KILL and
// SIMCUDA_CALL_US say.
#define _GNU_SOURCE
#include "sim.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULES 32

static struct rule {
	char name[64];
	unsigned from; // the number of the first call that the rule is for, from 1
	bool onward;   // all later ones too
	bool kill;
	CUresult error;
	_Atomic unsigned calls;
} rules[RULES];
static int count;
static struct cost {
	char name[64];
	uint64_t ns;
} costs[RULES];
static int cost_count;
static bool wrong;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// Whether an exported function has that name, or is a version of a function of that name (cuMemFree is cuMemFree_v2 too).
static bool is_named(const char *exported, const char *name)
{
	size_t n = strlen(name);
	if (strncmp(exported, name, n) != 0)
		return false;
	const char *rest = exported + n;
	if (rest[0] == '_' && rest[1] == 'v' && isdigit((unsigned char)rest[2])) {
		for (rest += 2; isdigit((unsigned char)*rest); rest++)
			;
	}
	return !*rest || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

static bool exists(const char *name)
{
	for (const char *const *at = exported_first; at < exported_end; at++)
		if (is_named(*at, name))
			return true;
	return false;
}

// Reads "NAME:N", "NAME:N+", "NAME:N:ERROR" or "NAME:N+:ERROR".
static bool read_rule(char *text, bool kill)
{
	struct rule *r = &rules[count];
	char *colon = strchr(text, ':'), *end;
	if (!colon || count == RULES || (size_t)(colon - text) >= sizeof r->name)
		return false;
	*colon = 0;
	strcpy(r->name, text);
	r->from = (unsigned)strtoul(colon + 1, &end, 10);
	r->onward = *end == '+';
	end += r->onward;
	r->error = 999; // CUDA_ERROR_UNKNOWN
	r->kill = kill;
	if (*end == ':' && !kill)
		r->error = (CUresult)strtol(end + 1, &end, 10);
	if (*end || !r->from || !r->error || !exists(r->name))
		return false;
	count++;
	return true;
}

static bool read_failure(char *text) { return read_rule(text, false); }

static bool read_death(char *text) { return read_rule(text, true); }

// Reads "NAME:MICROSECONDS".
static bool read_cost(char *text)
{
	struct cost *c = &costs[cost_count];
	char *colon = strchr(text, ':'), *end;
	if (!colon || cost_count == RULES || (size_t)(colon - text) >= sizeof c->name)
		return false;
	*colon = 0;
	strcpy(c->name, text);
	c->ns = strtoull(colon + 1, &end, 10) * 1000;
	if (*end || !c->ns || !exists(c->name))
		return false;
	cost_count++;
	return true;
}

static void read_variable(const char *variable, bool (*read_one)(char *text))
{
	const char *value = getenv(variable);
	char *copy = strdup(value ? value : ""), *rest = copy;
	for (char *text; copy && (text = strsep(&rest, ","));)
		if (*text && !read_one(text)) {
			fprintf(stderr, "simulated CUDA driver: %s=%s: \"%s\" is no NAME:N of a function of the driver\n",
				variable, value, text);
			wrong = true;
		}
	free(copy);
}

static void read_rules(void)
{
	read_variable("SIMCUDA_FAIL", read_failure);
	read_variable("SIMCUDA_KILL", read_death);
	read_variable("SIMCUDA_CALL_US", read_cost);
}

bool faults_understood(void)
{
	pthread_once(&once, read_rules);
	return !wrong;
}

CUresult sim_called(const char *name)
{
	pthread_once(&once, read_rules);
	CUresult r = CUDA_SUCCESS;
	for (int i = 0; i < cost_count; i++)
		if (is_named(name, costs[i].name))
			sim_take(costs[i].ns);
	for (int i = 0; i < count; i++) {
		if (!is_named(name, rules[i].name))
			continue;
		unsigned n = atomic_fetch_add(&rules[i].calls, 1) + 1;
		if (n != rules[i].from && !(rules[i].onward && n > rules[i].from))
			continue;
		fprintf(stderr, "simulated CUDA driver: call %u of %s %s\n", n, rules[i].name,
			rules[i].kill ? "kills" : "fails");
		if (rules[i].kill)
			kill(getpid(), SIGKILL);
		r = rules[i].error;
	}
	return r;
}

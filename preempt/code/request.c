// request.c - see request.h.
#define _GNU_SOURCE
#include "preempt/code/request.h"
#include "preempt/process/process.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// The rewriter does nothing once the helper has ended, nor while the disk of rewritten code does not answer. A thread that asks does not wait for ever: after this time it loads the code as it came.
_Atomic uint64_t gp_request_patience_ns = 60ull * 1000000000; // more than the largest images take

// The rewriter gets this copy, since the thread that asks may leave. The first of the two to change the state from ASKED, with one
// instruction, gives the rest to the other one. That frees it: the asker with the answer, the rewriter with an answer that it throws
// away.
struct asked {
	struct gp_request request; // first
	_Atomic uint32_t state;    // futex: what follows
	struct asked *next;
	char data[]; // its path, options and linked cubin
};
enum { ASKED, ANSWERED, LEFT };

static struct {
	pthread_mutex_t lock;
	struct asked *first, **last;
	struct asked *taken; // by the rewriter
	_Atomic uint32_t left; // requests whose asker has left and that have no answer yet: until then no other thread asks
} requests = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct asked *copy_of(const struct gp_request *r)
{
	size_t path = r->path ? strlen(r->path) + 1 : 0, options = r->options ? strlen(r->options) + 1 : 0;
	size_t linked = r->linked ? r->linked_bytes : 0;
	struct asked *a = malloc(sizeof *a + linked + path + options);
	if (!a)
		return NULL;
	a->request = *r;
	a->state = ASKED;
	a->next = NULL;
	if (linked)
		a->request.linked = memcpy(a->data, r->linked, linked);
	if (path)
		a->request.path = memcpy(a->data + linked, r->path, path);
	if (options)
		a->request.options = memcpy(a->data + linked + path, r->options, options);
	return a;
}

static void append(struct asked *a)
{
	pthread_mutex_lock(&requests.lock);
	if (!requests.first)
		requests.last = &requests.first;
	*requests.last = a;
	requests.last = &a->next;
	pthread_mutex_unlock(&requests.lock);
	gp_ring_helper(GP_BELL_REQUESTS);
}

static bool change(struct asked *a, uint32_t to)
{
	uint32_t from = ASKED;
	return atomic_compare_exchange_strong(&a->state, &from, to);
}

// False: there is no answer, and there may never be one.
static bool wait_for(struct asked *a)
{
	uint64_t begun = gp_now_ns();
	while (a->state == ASKED) {
		if (gp_now_ns() - begun >= gp_request_patience_ns || gp_helper_gone) {
			requests.left++; // before the rewriter sees that it is left
			if (change(a, LEFT))
				return false;
			requests.left--;
			break;
		}
		gp_futex_wait(&a->state, ASKED, GP_LOOK_NS, false);
	}
	return true;
}

void gp_request_ask(struct gp_request *r)
{
	const char *reason = "the rewriter does not answer";
	struct asked *a = NULL;
	if (!requests.left && !(a = copy_of(r)))
		reason = "no memory";
	if (a) {
		append(a);
		if (wait_for(a)) {
			const char *path = r->path, *options = r->options;
			const void *linked = r->linked;
			*r = a->request;
			r->path = path; // not the copies
			r->options = options;
			r->linked = linked;
			free(a);
			return;
		}
		r->picked = (struct gp_picked){0}; // it went with the request
	}
	r->answer = GP_FAILED;
	strcpy(r->reason, reason);
}

// Throws away an answer that no thread waits for.
static void discard(struct asked *a)
{
	gp_picked_unmap(&a->request.picked);
	if (a->request.rewritten)
		munmap((void *)a->request.rewritten, a->request.rewritten->bytes);
	free(a);
	requests.left--;
}

// Takes a request off the list of those that are taken; false: it is not there, and may be freed.
static bool give_up(struct asked *a)
{
	pthread_mutex_lock(&requests.lock);
	struct asked **at = &requests.taken;
	while (*at && *at != a)
		at = &(*at)->next;
	bool is = *at;
	if (is)
		*at = a->next;
	pthread_mutex_unlock(&requests.lock);
	return is;
}

struct gp_request *gp_request_take(void)
{
	for (;;) {
		pthread_mutex_lock(&requests.lock);
		struct asked *a = requests.first;
		if (a) {
			requests.first = a->next;
			a->next = requests.taken;
			requests.taken = a;
		}
		pthread_mutex_unlock(&requests.lock);
		if (!a || a->state != LEFT)
			return a ? &a->request : NULL;
		if (give_up(a))
			discard(a);
	}
}

void gp_request_answer(struct gp_request *r, int answer)
{
	struct asked *a = (struct asked *)r;
	if (!give_up(a))
		return; // gp_requests_fail has answered it
	r->answer = (enum gp_answer)answer;
	if (change(a, ANSWERED)) // from here on it may be freed: waking an address without a waiter does no harm
		gp_futex_wake(&a->state, 1, false);
	else
		discard(a);
}

void gp_requests_fail(void)
{
	for (struct asked *a; (a = requests.taken);) {
		strcpy(a->request.reason, "the helper process has ended");
		gp_request_answer(&a->request, GP_FAILED);
	}
}

void gp_picked_unmap(struct gp_picked *p)
{
	if (p->form)
		munmap(p->memory, p->bytes);
	*p = (struct gp_picked){0};
}

// interleave_test.c - interleaved with test/units/interleave/interleave.c.
//
// Handshakes with and without their second look: orders in which one side misses the other are found, and none where there is none.
#include "test/units/interleave/interleave.h"

#include <sys/wait.h>
#include <unistd.h>

static int one, two, entered;
static bool looks; // the second look is made

static void set(int *word, int to)
{
	interleave_point();
	*word = to;
}

static int get(const int *word)
{
	interleave_point();
	return *word;
}

static void reset(void) { one = two = entered = 0; }

// The second thread sees the first, and stays out.
static void first(void)
{
	set(&one, 1);
	entered += !get(&two);
}

static void second(void)
{
	if (!looks && get(&one))
		return;
	set(&two, 1);
	entered += !looks || !get(&one);
}

static void check(void) { CHECK(entered < 2); }

// The third interruption is the one that matters.
static void thrice(void)
{
	for (int i = 0; i < 3; i++)
		set(&one, i);
}

static void seen(void)
{
	bool all = get(&one) == 0;
	all = get(&one) == 1 && all;
	entered = all && get(&one) == 2;
}

static void never(void) { CHECK(!entered); }

static bool found(const struct interleaving *test)
{
	int status;
	fflush(stdout);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(freopen("/dev/null", "w", stdout)); // what it finds is what is wanted
		interleave(test);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status) == 1;
}

int main(void)
{
	struct interleaving handshake = {"handshake", reset, {first, second}, check, .preemptions = 1};
	looks = true;
	interleave(&handshake);
	looks = false;
	CHECK(found(&handshake));
	handshake.preemptions = 0; // each runs to its end
	CHECK(!found(&handshake));

	struct interleaving deep = {"deep", reset, {seen, thrice}, never};
	deep.preemptions = 3;
	CHECK(found(&deep));
	deep.preemptions = 2;
	CHECK(!found(&deep));
	return 0;
}

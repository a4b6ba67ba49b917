// check.h - runs a test of the simulated driver, and fails it.
#ifndef SELFTEST_CHECK_H
#define SELFTEST_CHECK_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct test {
	const char *name;
	void (*run)(void);
};

// The rest of main: runs the test that the program's argument names.
static inline int run_test(int argc, char **argv, const struct test *tests, size_t count)
{
	for (size_t i = 0; argc == 2 && i < count; i++)
		if (strcmp(tests[i].name, argv[1]) == 0) {
			tests[i].run();
			printf("simulated: %s ok\n", argv[1]);
			return 0;
		}
	fprintf(stderr, "usage: %s NAME\n", argv[0]);
	return 2;
}

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "simulated: %s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

// A condition that holds only while this process has a processor when it needs one. Otherwise the program is run again
// (../simcuda_test.go).
enum { TOO_SLOW = 75 }; // the status
#define TIMED(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "simulated: %s:%d: %s is false at this time\n", __FILE__, __LINE__, #condition); \
			_exit(TOO_SLOW); \
		} \
	} while (0)

#define OK(call) \
	do { \
		int r_ = (call); \
		if (r_ != 0) { \
			fprintf(stderr, "simulated: %s:%d: %s returned %d\n", __FILE__, __LINE__, #call, r_); \
			_exit(1); \
		} \
	} while (0)

#define REFUSED(error, call) \
	do { \
		int r_ = (call); \
		if (r_ != (error)) { \
			fprintf(stderr, "simulated: %s:%d: %s returned %d, not %d\n", __FILE__, __LINE__, #call, r_, \
				(error)); \
			_exit(1); \
		} \
	} while (0)

#endif

// driver.h - how the programs of these tests call the driver: by name, found at run time. A program defines
// FUNCTIONS(F), a list of F(name, parameters), includes this, and calls find_driver first.
#ifndef TEST_DRIVER_H
#define TEST_DRIVER_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *handle;
typedef unsigned long long ptr;

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

// Ends the program, at once: other threads may still run.
#define OK(call) \
	do { \
		int r_ = (call); \
		if (r_ != 0) { \
			fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, r_); \
			_Exit(1); \
		} \
	} while (0)

static inline handle find_driver(void)
{
	handle library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		_Exit(1);
	}
#define FIND(name, parameters) \
	if (!(name = (int(*) parameters)dlsym(library, #name))) { \
		fprintf(stderr, "no %s\n", #name); \
		_Exit(1); \
	}
	FUNCTIONS(FIND)
	return library;
}

#endif

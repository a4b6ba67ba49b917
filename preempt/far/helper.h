// helper.h - the program's side of the helper: the process, and the thread that holds its descriptors.
#ifndef GPREEMPT_HELPER_H
#define GPREEMPT_HELPER_H

#include <stdint.h>

enum { GP_HELPER_PAGE = 3, GP_HELPER_SOCKET = 4 }; // descriptors that the helper is born with

// The helper asks this of the thread with the descriptors; the answer is a gp_helper_answer.
enum gp_helper_what {
	GP_HELPER_STARTED, // a: 1: hooks are installed, 0: they are not; the program goes on
	GP_HELPER_FILE,    // with a descriptor of a file, which is kept; answers a number
	GP_HELPER_CLOSE,   // a: such a number; its locks go
	GP_HELPER_LOCK,    // a: number, b: F_WRLCK or F_UNLCK, c: start, d: length
	GP_HELPER_CONNECT, // text: a path; answers with a descriptor of a socket, as the program has connected it
	GP_HELPER_OPEN,    // text: a path, as the program sees it; answers with a descriptor to read
	GP_HELPER_VIEW,    // answers a number of a new range for a segment; a: 1: of the segment nothing can be written
	GP_HELPER_MAP, // a: view, b: offset, c: length, d: offset in the file; with a descriptor, else zeros; e: 1: writable
	GP_HELPER_ATTACH,  // a: view, b: GPU, c: slot, d: paged
	GP_HELPER_MOVE,    // the same, but d: 1: paged, 2: owned
	GP_HELPER_ISOLATE, // a: GPU
	GP_HELPER_FREE,    // a: view
	GP_HELPER_MEMORY,  // with a descriptor; a: bytes: maps a private copy; answers its address
};

struct gp_helper_question {
	uint64_t what, a, b, c, d, e;
	char text[4096 - 48];
};

struct gp_helper_answer {
	int64_t result; // < 0: -errno
};

struct gp_bridge_layer;
// Starts the helper, and waits until it has installed the hooks, or will not: it says why in the log. Returns why there is none, or NULL.
// lookup: see gp_bridge_resolve; environment: of the program, which stays.
const char *gp_helper_start(const struct gp_bridge_layer *, void *lookup, char **environment);

#endif

// helper.c - how the library's file begins: in a program it waits for cuInit, in a helper it runs Go.
#define _GNU_SOURCE
#include "shim/shim.h"
#include "preempt/far/helper.h"

#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

// In the program, on the thread that initialises CUDA first.
static const char *start(char **environment)
{
	struct gp_bridge_layer layer = {.armed = (void *)&gp_armed,
					.substitute = gp_substitute,
					.install = gp_install_hooks,
					.install_sockets = gp_install_socket_hooks,
					.say = gp_say};
	layer.build = gp_library_notes(&layer.build_bytes);
	return gp_helper_start(&layer, (void *)gp_driver_symbol, environment);
}

__attribute__((constructor)) static void loaded(void) { gp_set_start(start); }

// In the helper. The dynamic loader runs the library's file as a program: its entry is this one (exports/link.sh).

typedef void constructor(int argc, char **argv, char **envp);
// By the linker (exports/go_runtime.ld). A test is linked without it, and is no helper.
extern constructor *const __start_gp_runtime[] __attribute__((weak, visibility("hidden")));
extern constructor *const __stop_gp_runtime[] __attribute__((weak, visibility("hidden")));

extern char __ehdr_start[] __attribute__((visibility("hidden"))); // the linker's; not const: compilers drop writes there

// By exports/deferred: the relocations of Go's data, which the loader does not apply. In a test: none.
static const volatile struct {
	uint64_t offset, count; // in the mapping of the library's file
} deferred __attribute__((used, section("gp_deferred")));

static void relocate_go(void)
{
	char *base = __ehdr_start;
	const ElfW(Rela) *r = (const ElfW(Rela) *)(base + deferred.offset);
	for (uint64_t i = 0; i < deferred.count; i++)
		*(uint64_t *)(base + r[i].r_offset) = (uint64_t)base + (uint64_t)r[i].r_addend;
}

static int helper(int argc, char **argv, char **envp)
{
	if (argc != 3)
		return 2;
	struct rlimit limit; // Go reserves addresses
	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_AS, &limit);
	}
	struct gp_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, GP_HELPER_PAGE, 0);
	if (page == MAP_FAILED)
		return 1;
	close(GP_HELPER_PAGE);
	size_t bytes = 0;
	const void *build = gp_library_notes(&bytes);
	if (memcmp(page->build, build, bytes < sizeof page->build ? bytes : sizeof page->build))
		return 127; // another file: calls would go to other places
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGXFSZ, SIG_IGN); // a log may reach a limit of file sizes
	prctl(PR_SET_NAME, "gpreempt-helper", 0, 0, 0);
	gp_far_use(page);
	relocate_go();
	for (constructor *const *c = __start_gp_runtime; c < __stop_gp_runtime; c++)
		(*c)(argc, argv, envp);
	gpreemptHelper(atoi(argv[1]), argv[2], page);
	return 1;
}

extern int __libc_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
			     void (*)(void), void *);

// Before constructors have run, a sanitizer's among them.
__attribute__((used, visibility("hidden"), no_sanitize("thread", "address"))) void gp_helper_main(long *stack)
{
	__libc_start_main(helper, (int)stack[0], (char **)(stack + 1), NULL, NULL, NULL, stack);
}

#ifdef __x86_64__
__asm__(".text\n.globl gp_helper_entry\n.type gp_helper_entry,@function\ngp_helper_entry:\n"
	"xor %ebp,%ebp\nmov %rsp,%rdi\nand $-16,%rsp\ncall gp_helper_main\nhlt\n");
#else
__asm__(".text\n.globl gp_helper_entry\n.type gp_helper_entry,%function\ngp_helper_entry:\n"
	"mov x29,#0\nmov x30,#0\nmov x0,sp\nbl gp_helper_main\nbrk #0\n");
#endif

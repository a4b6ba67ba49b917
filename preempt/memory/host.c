// host.c - how much memory the machine and this process's control groups leave for pinning. The files are not trusted: numbers saturate,
// and a file that cannot be read says nothing.
#define _GNU_SOURCE
#include "preempt/memory/arena.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	LONGEST_PATH = 4096,
	LONGEST_FILE = 1 << 20, // mountinfo of a machine with thousands of mounts
	KEEP_PART = 16,         // a sixteenth stays for others: pinned memory cannot be reclaimed
};

// The control groups are known by two hierarchies, whose files have different names.
struct hierarchy {
	const char *type, *option; // in mountinfo; option NULL: any
	const char *limit[2], *usage, *reclaimable;
};

static const struct hierarchy V1 = {
	"cgroup", "memory", {"memory.limit_in_bytes", NULL}, "memory.usage_in_bytes", "total_inactive_file"};
static const struct hierarchy V2 = {"cgroup2", NULL, {"memory.max", "memory.high"}, "memory.current", "inactive_file"};

static uint64_t without(uint64_t from, uint64_t part) { return from > part ? from - part : 0; }

// The text of a file, for the caller to free; NULL: it cannot be read.
static char *text_of(const char *path)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	size_t length = 0;
	ssize_t got = -1;
	char *text = file < 0 ? NULL : malloc(LONGEST_FILE + 1);
	while (text && length < LONGEST_FILE && (got = read(file, text + length, LONGEST_FILE - length)) > 0)
		length += (size_t)got;
	if (file >= 0)
		close(file);
	if (text && got < 0) {
		free(text);
		return NULL;
	}
	if (text)
		text[length] = '\0';
	return text;
}

// The number behind a word at the beginning of a line, "" for the first line itself. False: there is none.
static bool number_behind(const char *text, const char *word, uint64_t *number)
{
	size_t length = strlen(word);
	for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
		if (strncmp(line, word, length) != 0)
			continue;
		const char *digits = line + length + strspn(line + length, ": \t");
		if (*digits < '0' || *digits > '9')
			return false;
		*number = strtoull(digits, NULL, 10); // a larger number becomes the largest one
		return true;
	}
	return false;
}

static bool read_number(const char *directory, const char *file, const char *word, uint64_t *number)
{
	char path[LONGEST_PATH];
	if (snprintf(path, sizeof path, "%s/%s", directory, file) >= (int)sizeof path)
		return false;
	char *text = text_of(path);
	bool found = text && number_behind(text, word, number);
	free(text);
	return found;
}

// The bytes that a group leaves. Cached files that were not used lately count as free: the kernel takes them back when memory is wanted.
static uint64_t left_by(const struct hierarchy *h, const char *directory)
{
	uint64_t limit = UINT64_MAX, number, used, reclaimable = 0;
	for (int i = 0; i < 2 && h->limit[i]; i++)
		if (read_number(directory, h->limit[i], "", &number) && number < limit)
			limit = number;
	if (limit == UINT64_MAX || !read_number(directory, h->usage, "", &used))
		return UINT64_MAX;
	read_number(directory, "memory.stat", h->reclaimable, &reclaimable);
	return without(limit - limit / KEEP_PART, without(used, reclaimable));
}

static uint64_t left_up_to(const struct hierarchy *h, char *directory, size_t mount_length)
{
	uint64_t left = UINT64_MAX;
	for (;;) {
		uint64_t here = left_by(h, directory);
		if (here < left)
			left = here;
		char *slash = strrchr(directory, '/');
		if (!slash || (size_t)(slash - directory) < mount_length)
			return left;
		*slash = '\0';
	}
}

// Octal escapes of mountinfo, such as \040 for a space.
static void unescape(char *text)
{
	char *to = text;
	for (const char *from = text; *from; to++) {
		bool octal = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
		*to = octal ? (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + from[3] - '0') : *from;
		from += octal ? 4 : 1;
	}
	*to = '\0';
}

static bool has_option(const char *options, const char *option)
{
	size_t length = strlen(option);
	for (const char *at = options; (at = strstr(at, option)); at += length)
		if ((at == options || at[-1] == ',') && (at[length] == '\0' || at[length] == ','))
			return true;
	return false;
}

// Where a hierarchy is mounted: "36 35 98:0 /root /mount options ... - type source options". False: nowhere.
static bool find_mount(const struct hierarchy *h, char *mounts, char **root, char **mount)
{
	for (char *next, *line = mounts; line && *line; line = next) {
		char *rest, *end = strchr(line, '\n');
		next = end ? end + 1 : NULL;
		if (end)
			*end = '\0';
		char *separator = strstr(line, " - ");
		if (!separator)
			continue;
		char *type = strtok_r(separator + 3, " ", &rest);
		strtok_r(NULL, " ", &rest);
		char *options = strtok_r(NULL, " ", &rest);
		if (!type || strcmp(type, h->type) != 0 || (h->option && (!options || !has_option(options, h->option))))
			continue;
		*separator = '\0';
		strtok_r(line, " ", &rest);
		strtok_r(NULL, " ", &rest);
		strtok_r(NULL, " ", &rest);
		*root = strtok_r(NULL, " ", &rest);
		*mount = strtok_r(NULL, " ", &rest);
		if (!*root || !*mount)
			return false;
		unescape(*root);
		unescape(*mount);
		return true;
	}
	return false;
}

// The process's group: a line "0::/path" of version 2, "5:cpu,memory:/path" of version 1. NULL: there is none.
static char *find_group(const struct hierarchy *h, char *groups)
{
	for (char *next, *line = groups; line && *line; line = next) {
		char *end = strchr(line, '\n');
		next = end ? end + 1 : NULL;
		if (end)
			*end = '\0';
		char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		if (h->option ? has_option(controllers + 1, h->option) : !controllers[1])
			return path;
	}
	return NULL;
}

// A container sees a part of the hierarchy, whose top is the mount's root. A group outside of that part counts as its top.
static uint64_t left_by_groups(const struct hierarchy *h, const char *prefix, char *mounts, char *groups)
{
	char directory[LONGEST_PATH], *root, *mount, *group = find_group(h, groups);
	if (!group || !find_mount(h, mounts, &root, &mount))
		return UINT64_MAX;
	size_t length = strcmp(root, "/") ? strlen(root) : 0;
	bool inside = !strncmp(group, root, length) && (group[length] == '/' || !group[length]) && !strstr(group, "/..");
	const char *below = inside ? group + length : "";
	if (!strcmp(below, "/"))
		below = "";
	int total = snprintf(directory, sizeof directory, "%s%s%s", prefix, mount, below);
	if (total < 0 || (size_t)total >= sizeof directory)
		return UINT64_MAX;
	return left_up_to(h, directory, strlen(prefix) + strlen(mount));
}

static uint64_t left_in(const struct hierarchy *h, const char *prefix, const char *process)
{
	char path[LONGEST_PATH];
	snprintf(path, sizeof path, "%s/mountinfo", process);
	char *mounts = text_of(path);
	snprintf(path, sizeof path, "%s/cgroup", process);
	char *groups = text_of(path);
	uint64_t left = mounts && groups ? left_by_groups(h, prefix, mounts, groups) : UINT64_MAX;
	free(mounts);
	free(groups);
	return left;
}

uint64_t gp_host_left(const char *prefix)
{
	char path[LONGEST_PATH], process[LONGEST_PATH];
	uint64_t total = 0, available = 0;

	snprintf(process, sizeof process, "%s/proc/self", prefix);
	snprintf(path, sizeof path, "%s/proc", prefix);
	if (!read_number(path, "meminfo", "MemTotal", &total) || !read_number(path, "meminfo", "MemAvailable", &available))
		return 0;
	if (total > UINT64_MAX / 1024 || available > UINT64_MAX / 1024)
		return 0;
	uint64_t left = without(available * 1024, total * 1024 / KEEP_PART);
	uint64_t v1 = left_in(&V1, prefix, process), v2 = left_in(&V2, prefix, process);
	if (v1 < left)
		left = v1;
	return v2 < left ? v2 : left;
}

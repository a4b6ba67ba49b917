// Package pods is how the plugin of the container runtime tells the broker and the metrics which pod a container is of: a folder with a
// file for each container, named by its ID. The plugin writes it before the runtime starts the container's first process. Readers believe
// whoever can write the folder: so only its owner may, who is root or the reader.
package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Pod is a container's pod at the time when the container was created.
type Pod struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	// MostAnnotations is the size in bytes above which all of a pod's annotations are left out: their author decides how many there
	// are.
	MostAnnotations = 32 << 10
	// mostBytes are read of a file. In JSON a byte has six at most.
	mostBytes = 6*MostAnnotations + 64<<10
	// unfinished ends the name of a file that is being written.
	unfinished = ".new"
)

var id = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Of makes a Pod. all says whether it has its annotations.
func Of(namespace, name string, annotations map[string]string) (p Pod, all bool) {
	size := 0
	for key, value := range annotations {
		size += len(key) + len(value)
	}
	if size > MostAnnotations {
		return Pod{Namespace: namespace, Name: name}, false
	}
	return Pod{namespace, name, annotations}, true
}

// Write tells of a container. Readers see all of the file or nothing.
func Write(folder, container string, p Pod) error {
	if !id.MatchString(container) {
		return fmt.Errorf("container %q: an ID must be 64 hexadecimal digits", container)
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	path := filepath.Join(folder, container)
	if err := os.WriteFile(path+unfinished, text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+unfinished, path)
}

// Remove forgets a container. It is no error if it was not known.
func Remove(folder, container string) error {
	if !id.MatchString(container) {
		return nil
	}
	if err := os.Remove(filepath.Join(folder, container)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Keep forgets all containers but these.
func Keep(folder string, containers map[string]bool) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		if container := strings.TrimSuffix(name, unfinished); id.MatchString(container) && (container != name || !containers[name]) {
			errs = append(errs, os.Remove(filepath.Join(folder, name)))
		}
	}
	return errors.Join(errs...)
}

// Read finds out which pod a container is of. known is false where nobody has told; an error says that the folder cannot be believed, or
// the file makes no sense.
func Read(folder, container string) (p Pod, known bool, err error) {
	if !id.MatchString(container) {
		return p, false, nil
	}
	if err := believable(folder); err != nil {
		return p, false, err
	}
	file, err := os.OpenFile(filepath.Join(folder, container), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, mostBytes))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && p.Namespace == "" {
		err = errors.New("it names no namespace")
	}
	if err != nil {
		return Pod{}, false, fmt.Errorf("pod of container %s: %w", container, err)
	}
	return p, true, nil
}

// believable says whether only this user, or root, can have written what is in the folder.
func believable(folder string) error {
	var is unix.Stat_t
	if err := unix.Lstat(folder, &is); err != nil {
		return &fs.PathError{Op: "read", Path: folder, Err: err}
	}
	if is.Mode&unix.S_IFMT != unix.S_IFDIR || is.Mode&0o022 != 0 || int(is.Uid) != os.Geteuid() && is.Uid != 0 {
		return fmt.Errorf("%s: must be a folder that only root, or this user, can write", folder)
	}
	return nil
}

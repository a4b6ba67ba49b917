package main

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

func cdiCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "cdi",
		Short: "Make the library a device that container runtimes give to containers",
		Long: "Docker, Podman, containerd and CRI-O read descriptions of devices in the form of the Container Device Interface (CDI).\n" +
			"A device may be files and variables only.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usage(fmt.Errorf("cdi %s: there is no such command; there is gpreempt cdi generate", args[0]))
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error {
			return cli.Usage(errors.New("cdi: what? For example: gpreempt cdi generate"))
		},
	}
	command.AddCommand(cdiGenerateCommand())
	return command
}

type cdiFlags struct {
	output, glibc string
	preload       []string
	user          int
	noSegment     bool
	broker        bool
}

func cdiGenerateCommand() *cobra.Command {
	var given cdiFlags
	command := &cobra.Command{
		Use:   "generate [flags]",
		Short: "Describe the library as devices of containers, one per priority",
		Long: "Writes gpreempt.io-role.json and gpreempt.io-files.json. Their devices are named lc, be, and 0 to 7:\n\n" +
			"  gpreempt.io/role=be   the library, the command, LD_PRELOAD and GPREEMPT_PRIORITY\n" +
			"  gpreempt.io/files=be  the same without LD_PRELOAD, which the image then keeps: programs are started by /opt/gpreempt/bin/gpreempt run\n\n" +
			"All is mounted read-only, but for the directory through which programs of one user know of each other,\n" +
			"on the host and in containers. Where that directory is on a file system that does not outlive a restart,\n" +
			"as /dev/shm, this command has to run again after it.",
		Example: "  sudo gpreempt cdi generate\n" +
			"  docker run --device nvidia.com/gpu=all \\\n      --device gpreempt.io/role=be IMAGE python3 train.py",
		Args: cli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error { return cdiGenerate(command, given) },
	}
	flags := command.Flags()
	flags.StringVarP(&given.output, "output", "o", "", "`folder` for the descriptions; default /var/run/cdi, and $XDG_RUNTIME_DIR/cdi for others than root")
	flags.StringArrayVar(&given.preload, "with-preload", nil, "absolute `path`, in the containers, of a library for LD_PRELOAD before this one; may be repeated")
	flags.StringVar(&given.glibc, "glibc", "2.17", "oldest `version` of glibc in images: the library must not need a newer one")
	flags.IntVar(&given.user, "user", 0, "`number`, inside the containers, of the user as whom their programs run")
	flags.BoolVar(&given.broker, "broker", false, "instead of the directory, the socket of the device's level of a broker (gpreemptd) at segment.broker: for containers that do not trust each other")
	flags.BoolVar(&given.noSegment, "no-segment", false, "leave the directory out: each container is for itself")
	return command
}

func cdiGenerate(command *cobra.Command, given cdiFlags) error {
	for _, path := range given.preload {
		if !filepath.IsAbs(path) || strings.ContainsAny(path, ": \n") {
			return cli.Usage(fmt.Errorf("--with-preload %q: must be an absolute path without blanks and colons", path))
		}
	}
	if given.user < 0 {
		return cli.Usage(fmt.Errorf("--user %d: must be the number of a user, from 0 on", given.user))
	}
	if given.output == "" {
		given.output = "/var/run/cdi"
		if os.Geteuid() != 0 {
			runtime := os.Getenv("XDG_RUNTIME_DIR")
			if runtime == "" {
				return cli.Usage(errors.New("XDG_RUNTIME_DIR is not set: give --output a folder that the container runtime reads"))
			}
			given.output = filepath.Join(runtime, "cdi")
		}
	}
	files := cdiFiles{preload: given.preload}
	var err error
	if files.library, err = cli.FindLibrary(); err != nil {
		return cli.Usage(err)
	}
	if files.library, err = filepath.EvalSymlinks(files.library); err != nil {
		return fmt.Errorf("find the library: %w", err)
	}
	if err := cli.CheckLibrary(files.library); err != nil {
		return cli.Usage(err)
	}
	if files.command, err = os.Executable(); err != nil {
		return fmt.Errorf("find own executable: %w", err)
	}
	for _, path := range []string{files.library, files.command} {
		if err := checkGlibc(path, given.glibc); err != nil {
			return cli.Usage(err)
		}
	}
	switch {
	case given.broker:
		if files.sockets, err = brokerSockets(); err != nil {
			return cli.Usage(err)
		}
	case !given.noSegment:
		if files.segmentHost, err = sharedSegments(given.user); err != nil {
			return err
		}
		files.segmentInside = segment.Directory(defaultSegments, given.user)
	}
	for _, preloaded := range []bool{true, false} {
		path, err := writeCDI(given.output, cdiSpec(files, preloaded))
		if err != nil {
			return err
		}
		fmt.Fprintln(command.OutOrStdout(), path)
	}
	return nil
}

// checkGlibc sees that a file asks for nothing that an old glibc lacks. Preloaded, it would end every program of such an image.
func checkGlibc(path, oldest string) error {
	var newest string
	allowed, err := glibcVersion(oldest)
	if err != nil {
		return fmt.Errorf("--glibc %q: must be a version of glibc like 2.17", oldest)
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer file.Close()
	symbols, err := file.ImportedSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) { // a program without any is linked statically
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, symbol := range symbols {
		version, is := strings.CutPrefix(symbol.Version, "GLIBC_")
		if number, err := glibcVersion(version); is && err == nil && number > allowed {
			newest, allowed = version, number
		}
	}
	if newest != "" {
		return fmt.Errorf("%s needs glibc %s, and --glibc %s says that images may have that one, whose programs would not start; "+
			"build with make dist, or say --glibc %s if no image has an older one", path, newest, oldest, newest)
	}
	return nil
}

// glibcVersion makes 2.17, or 2.3.4, a number that can be compared: thousands of the second part, and the third.
func glibcVersion(text string) (int, error) {
	parts := strings.Split(text, ".")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "2" {
		return 0, strconv.ErrSyntax
	}
	number := 0
	for _, part := range append(parts, "0")[1:3] {
		n, err := strconv.ParseUint(part, 10, 9)
		if err != nil {
			return 0, err
		}
		number = 1000*number + int(n)
	}
	return number, nil
}

const defaultSegments = "/dev/shm" // segment.directory of a library without a configuration, as in containers

// sharedSegments makes the directory through which programs of a user, as a number inside containers, know of each other. A
// user who is not root is root in containers of their own.
func sharedSegments(user int) (string, error) {
	config, _, _, err := loadConfig("")
	if err != nil {
		return "", err
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = user
	}
	directory := segment.Directory(config.Segment.Directory, owner)
	if err := os.Mkdir(directory, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("make the directory of segments: %w", err)
	} else if err == nil && owner != os.Geteuid() {
		if err := os.Lchown(directory, owner, -1); err != nil {
			return "", fmt.Errorf("make the directory of segments: %w", err)
		}
	}
	var stat unix.Stat_t
	if err := unix.Lstat(directory, &stat); err != nil {
		return "", fmt.Errorf("directory of segments %s: %w", directory, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != owner || stat.Mode&0o077 != 0 {
		return "", fmt.Errorf("directory of segments %s: user %d, mode %04o; must be a directory of user %d, mode 0700: "+
			"have it removed, or say --no-segment", directory, stat.Uid, stat.Mode&0o7777, owner)
	}
	return directory, nil
}

// brokerSockets is the directory of a broker's sockets, which has one for each level: a container whose is missing would not start.
func brokerSockets() (string, error) {
	config, _, _, err := loadConfig("")
	if err != nil {
		return "", err
	}
	if config.Segment.Broker == "" {
		return "", errors.New(`--broker: segment.broker is "": there is no broker`)
	}
	for level := range configs.Levels {
		folder := filepath.Join(config.Segment.Broker, strconv.Itoa(level))
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			return "", fmt.Errorf("--broker: %s is not there, or no directory: start gpreemptd, or enable gpreemptd.socket, first", folder)
		}
	}
	return config.Segment.Broker, nil
}

func makeIn(folder string) (*os.File, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	return os.CreateTemp(folder, ".gpreempt-")
}

// writeCDI writes a description so that no reader sees half of it, and that runtimes of other users can read it.
func writeCDI(folder string, spec cdiDevices) (path string, err error) {
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write CDI: %w", err)
	}
	file, err := makeIn(folder)
	if err != nil {
		return "", fmt.Errorf("--output %q: %w; must be a folder that this user can write, as /var/run/cdi for root", folder, cli.Cause(err))
	}
	path = filepath.Join(folder, strings.ReplaceAll(spec.Kind, "/", "-")+".json")
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return path, nil
}

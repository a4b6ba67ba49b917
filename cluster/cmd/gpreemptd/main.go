// Command gpreemptd lets processes of several users, containers and pods share GPUs without trusting each other.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpreempt/gpreempt/broker/join"
	"github.com/gpreempt/gpreempt/cluster/broker"
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
	"github.com/gpreempt/gpreempt/cluster/servicelog"
	"github.com/gpreempt/gpreempt/configs"
	"github.com/gpreempt/gpreempt/internal/cli"
	"github.com/gpreempt/gpreempt/preempt/segment"
)

// version is set by the Makefile.
var version string

const policyPath = "/etc/gpreempt/policy.toml"

type options struct {
	directory, policy, group string
	pods                     string
	check, others            bool
	level                    string
}

func rootCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "gpreemptd",
		Short: "Let processes that do not trust each other share GPUs under gpreempt",
		Long: `gpreemptd gives each process under libgpreempt.so pages that only this process can write, shows them to the others on its GPU, and says
whose turn it is, by a policy. Programs find it by its sockets, one for each level from 0 to 7: DIRECTORY/LEVEL/broker.sock, and lc and be beside
them. A process has the level of the socket at best, so what a container can reach is what was mounted into it.
DIRECTORY/admin.sock is for the administrator alone, who sees and changes all processes; no container is given it. Under
systemd, sockets of such paths come from socket units. SIGHUP reads the policy again, SIGTERM ends it: programs go on, and join the next one.`,
		Args:    cli.NoArguments,
		Version: cli.Version(version),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.check {
				if _, err := servicelog.New(io.Discard, o.level); err != nil {
					return err
				}
				return check(c.OutOrStdout(), o.policy)
			}
			return serve(c.ErrOrStderr(), o)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.directory, "directory", join.Directory, "where the sockets are made, unless systemd made them")
	flags.StringVar(&o.policy, "policy", "", "TOML file of who may do what; "+policyPath+" if that is there, else everybody is best effort")
	flags.StringVar(&o.group, "group", "", "only root and this group may reach the sockets of levels above the lowest")
	flags.StringVar(&o.pods, "pods", "", "folder where gpreempt-nri --pods says which pod a container is of, for conditions of the policy")
	flags.BoolVar(&o.others, "others", true, "look for processes on the GPUs that are no clients, by gpreempt and NVIDIA's management library")
	flags.BoolVar(&o.check, "check", false, "read the policy, say what is wrong with it, and end")
	flags.StringVar(&o.level, "log", "info", servicelog.Usage)
	return command
}

func main() { os.Exit(cli.Run(rootCommand())) }

// load reads the policy. A file that was named must be there.
func load(path string) (*policy.Policy, error) {
	if path != "" {
		p, err := policy.Load(path)
		var file *fs.PathError
		if errors.As(err, &file) {
			return nil, cli.Usage(fmt.Errorf("--policy %q: %w", path, cli.NoFile(err)))
		}
		return p, err
	}
	p, err := policy.Load(policyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Default(), nil
	}
	return p, err
}

func check(out io.Writer, path string) error {
	p, err := load(path)
	if err != nil {
		return err
	}
	if p.Path == "" {
		_, err = fmt.Fprintf(out, "no policy at %s: everybody is best effort\n", policyPath)
		return err
	}
	_, err = fmt.Fprintf(out, "%s: no mistakes\n", p.Path)
	return err
}

func serve(out io.Writer, o options) error {
	// One loop serves all clients, and Go's runtime keeps threads and memory for each processor that it uses.
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 2))
	log, err := servicelog.New(out, o.level)
	if err != nil {
		return err
	}
	p, err := load(o.policy)
	if err != nil {
		return err
	}
	unix.Umask(0o022)
	server, err := broker.New(segment.Version, p, log)
	if err != nil {
		return err
	}
	server.SetPods(o.pods)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	made, err := listen(server, o)
	if err != nil {
		return err
	}
	defer made.remove()
	if path := keptIn(o.directory, len(made) > 0); path != "" {
		if err := server.Keep(path); err != nil {
			log.Error().Err(err).Msg("what people set at an earlier broker is lost")
		}
	}
	ended := make(chan struct{})
	defer close(ended)
	go obey(server, o, log, signals, ended)
	if o.others {
		go watchOthers(server, log, ended)
	}
	every, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		log.Warn().Err(err).Msg("systemd's watchdog: it is not told that the broker lives")
	}
	if every > 0 {
		go tellAlive(server, every/3, ended)
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Warn().Err(err).Msg("systemd could not be told")
	}
	// The heap is small, and is to stay so beside many clients: most allocations are for the policy, once, and for messages.
	debug.SetGCPercent(25)
	debug.FreeOSMemory()
	serving := log.Info().Str("version", cli.Version(version)).Str("policy", p.Path)
	if len(made) > 0 { // else systemd's units say where
		serving = serving.Str("directory", o.directory)
	}
	serving.Msg("serving")
	err = server.Run()
	log.Info().Msg("ended")
	return err
}

// keptIn is the file for what people set: in the folder that systemd made for this service, or beside the sockets, if they are this process's.
// "": nowhere.
func keptIn(directory string, ours bool) string {
	if folder, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":"); folder != "" {
		directory = folder
	} else if !ours {
		return ""
	}
	return filepath.Join(directory, "set.json")
}

// tellAlive tells systemd that the server's loop goes on, until it has ended. It tells nothing while the loop does not: systemd ends this
// process then, and starts the next one.
func tellAlive(server *broker.Server, every time.Duration, ended <-chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		went := make(chan struct{})
		server.Do(func() { close(went) })
		select {
		case <-ended:
			return
		case <-went:
		}
		_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) // fails where systemd does not listen, and then it ends this process
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
	}
}

// obey does what signals say until the server has ended.
func obey(server *broker.Server, o options, log zerolog.Logger, signals <-chan os.Signal, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case s := <-signals:
			if s != unix.SIGHUP {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
				server.Stop()
				continue
			}
		}
		p, err := load(o.policy)
		if err != nil {
			server.PolicyWrong()
			log.Error().Err(err).Msg("the policy stays as it was")
			continue
		}
		server.SetPolicy(p)
		log.Info().Str("policy", p.Path).Msg("another policy is in force")
	}
}

// sockets are paths that this process made.
type sockets []string

func (s sockets) remove() {
	for _, path := range s {
		_ = os.Remove(path) // else the next broker replaces it
	}
}

// listen takes the sockets that systemd made, or makes them.
func listen(server *broker.Server, o options) (made sockets, err error) {
	if given := activation.Files(true); len(given) > 0 {
		for _, file := range given {
			if err := take(server, file); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	if err := lock(o.directory); err != nil {
		return nil, err
	}
	gid := -1
	if o.group != "" {
		if gid, err = groupID(o.group); err != nil {
			return nil, cli.Usage(fmt.Errorf("--group %q: there is no such group; must be the name or number of one", o.group))
		}
	}
	for level := range configs.Levels {
		mode, owner := fs.FileMode(0o755), -1
		if gid >= 0 && level < configs.Levels-1 {
			mode, owner = 0o750, gid
		}
		path := join.SocketIn(o.directory, level)
		fd, err := broker.Bind(path, mode, owner)
		if err == nil {
			made = append(made, path)
			err = server.Listen(fd, level)
		}
		if err != nil {
			made.remove()
			return nil, err
		}
	}
	admin := join.AdminIn(o.directory)
	fd, err := broker.BindAdmin(admin)
	if err == nil {
		made = append(made, admin)
		err = server.ListenAdmin(fd)
	}
	if err == nil {
		err = names(o.directory)
	}
	if err != nil {
		made.remove()
		return nil, err
	}
	return made, nil
}

// groupID returns the number of a group that is given by name or number.
func groupID(group string) (int, error) {
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	found, err := user.LookupGroup(group)
	if err != nil {
		return -1, err
	}
	return strconv.Atoi(found.Gid)
}

// take listens at a socket of systemd's. Its path says its level, or that it is the administrator's.
func take(server *broker.Server, file *os.File) error {
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("socket %s of systemd: %w", file.Name(), err)
	}
	address, err := unix.Getsockname(fd)
	path := ""
	if at, is := address.(*unix.SockaddrUnix); is {
		path = at.Name
	}
	if err == nil && filepath.Base(path) == filepath.Base(join.AdminIn("")) {
		if err = server.ListenAdmin(fd); err != nil {
			unix.Close(fd)
			return fmt.Errorf("socket %s of systemd: %w", path, err)
		}
		return nil
	}
	level, bad := strconv.Atoi(filepath.Base(filepath.Dir(path)))
	if err != nil || bad != nil || level < 0 || level >= configs.Levels {
		unix.Close(fd)
		return fmt.Errorf("socket %q of systemd: its path must end in LEVEL/NAME with a level from 0 to %d, or in admin.sock", path, configs.Levels-1)
	}
	if err := server.Listen(fd, level); err != nil {
		unix.Close(fd)
		return fmt.Errorf("socket %s of systemd: %w", path, err)
	}
	return nil
}

// lock keeps a second broker out of the directory, for as long as this process lives.
func lock(directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return cli.Usage(fmt.Errorf("--directory %q: %w", directory, cli.Cause(err)))
	}
	fd, err := unix.Open(filepath.Join(directory, "lock"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", directory, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return fmt.Errorf("%s is another broker's: %w", directory, err)
	}
	return nil
}

// names makes lc and be, links to the highest and the lowest level.
func names(directory string) error {
	for name, level := range map[string]int{"lc": 0, "be": configs.Levels - 1} {
		path := filepath.Join(directory, name)
		if is, err := os.Readlink(path); err == nil && is == strconv.Itoa(level) {
			continue
		}
		if err := os.Symlink(strconv.Itoa(level), path); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	return nil
}

package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/rs/zerolog"
)

// The plugin's name and index. Plugins are asked in the order of their indexes: this one sees what others have changed.
const (
	Name  = "gpreempt"
	index = "95"
)

// DefaultSocket is where runtimes wait for plugins.
const DefaultSocket = api.DefaultSocketPath

const (
	soonest = 100 * time.Millisecond // between attempts to register
	latest  = 5 * time.Second
	// registersWithin is how long a runtime has, from the connection on, to register and configure the plugin. A node may be busy.
	registersWithin = 30 * time.Second
)

// Run registers with the runtime at a socket, and does it again whenever that is lost, until ctx is done.
func (p *Plugin) Run(ctx context.Context, socket string) {
	wait, said := soonest, ""
	for ctx.Err() == nil {
		registered, err := p.session(ctx, socket)
		if err == nil {
			err = errors.New("the runtime closed the connection")
		}
		p.lost(err)
		if registered {
			wait, said = soonest, ""
		}
		if ctx.Err() == nil && err.Error() != said {
			p.log.Warn().Err(err).Msg("not registered with the runtime: pods start without the library")
			said = err.Error()
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, latest)
	}
}

// session is one connection with the runtime.
type session struct {
	*Plugin
	mutex      sync.Mutex
	configured bool
	given      error // why it was given up
}

var errUnconfigured = errors.New("the runtime did not configure the plugin")

// session returns when the connection has ended, and whether it was a registered plugin's until then.
func (p *Plugin) session(ctx context.Context, socket string) (registered bool, err error) {
	s := &session{Plugin: p}
	c := &connection{closed: make(chan struct{})}
	dial := func(path string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: latest}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.Conn = conn
		return c, nil
	}
	one, err := stub.New(s, stub.WithPluginName(Name), stub.WithPluginIdx(index), stub.WithSocketPath(socket), stub.WithDialer(dial),
		stub.WithOnClose(func() {}), stub.WithLogger(logger{p.log}))
	if err != nil {
		return false, err
	}
	ended := make(chan struct{})
	defer close(ended)
	go s.guard(ctx, c, one, ended)
	err = one.Run(ctx)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.given != nil {
		err = s.given
	}
	return s.configured, err
}

// guard ends a session that is never configured. The stub would wait for that without a limit, even if its connection is closed: what
// lets it go on is a Configure that fails.
func (s *session) guard(ctx context.Context, c *connection, one stub.Stub, ended <-chan struct{}) {
	limit := time.NewTimer(registersWithin)
	defer limit.Stop()
	select {
	case <-ended:
		return
	case <-ctx.Done():
	case <-c.closed:
	case <-limit.C:
	}
	s.mutex.Lock()
	if s.configured {
		s.mutex.Unlock()
		return
	}
	s.given = errUnconfigured
	s.mutex.Unlock()
	c.Close()
	select {
	case <-ended: // it was still registering
		return
	case <-time.After(soonest):
	}
	if service, is := one.(api.PluginService); is {
		_, _ = service.Configure(ctx, &api.ConfigureRequest{}) // it returns what Configure below does
	}
}

// Configure is the runtime's answer to the registration.
func (s *session) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.given != nil {
		return 0, s.given
	}
	s.configured = true
	s.log.Debug().Str("runtime", runtime).Str("version", version).Msg("configured by the runtime")
	return 0, nil // all that there are methods for
}

// connection says when it is closed by the other side, or cannot be read.
type connection struct {
	mutex sync.Mutex // of what follows, until it is connected
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *connection) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	if err != nil {
		c.once.Do(func() { close(c.closed) })
	}
	return n, err
}

func (c *connection) Close() error {
	c.mutex.Lock()
	conn := c.Conn
	c.mutex.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// logger is the stub's log. It logs the stub's reports of success at level debug.
type logger struct{ log zerolog.Logger }

func (l logger) Debugf(_ context.Context, format string, a ...any) { l.log.Trace().Msgf(format, a...) }
func (l logger) Infof(_ context.Context, format string, a ...any)  { l.log.Debug().Msgf(format, a...) }
func (l logger) Warnf(_ context.Context, format string, a ...any) {
	l.log.Warn().Msg("nri: " + fmt.Sprintf(format, a...))
}
func (l logger) Errorf(_ context.Context, format string, a ...any) {
	l.log.Warn().Msg("nri: " + fmt.Sprintf(format, a...))
}

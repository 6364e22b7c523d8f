package nodehttp

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// limitedListener keeps at most a number of connections. If one more comes, it
// closes the connection that has waited longest for a request, or for the rest of
// a request's header. Further connections wait in the kernel, without a
// descriptor.
type limitedListener struct {
	net.Listener
	most int

	mu      sync.Mutex
	changed *sync.Cond // there may be room
	open    int
	waiting []net.Conn // that have sent no request, in order
	closed  bool
}

func limitConnections(l net.Listener, most int) *limitedListener {
	limited := &limitedListener{Listener: l, most: most}
	limited.changed = sync.NewCond(&limited.mu)
	return limited
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.makeRoom() {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	return &limitedConn{Conn: conn, done: l.left}, nil
}

// makeRoom waits until there is room for one more, and takes it. It returns false
// if the listener is closed meanwhile.
func (l *limitedListener) makeRoom() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open >= l.most && !l.closed {
		if len(l.waiting) == 0 {
			l.changed.Wait()
			continue
		}
		longest := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.mu.Unlock()
		_ = longest.Close() // which tells left
		l.mu.Lock()
	}
	if l.closed {
		return false
	}
	l.open++
	return true
}

func (l *limitedListener) left() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.changed.Signal()
}

// connState is called by the server. It records which connections wait.
func (l *limitedListener) connState(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = slices.DeleteFunc(l.waiting, func(c net.Conn) bool { return c == conn })
	if state == http.StateNew || state == http.StateIdle {
		l.waiting = append(l.waiting, conn)
		l.changed.Signal()
	}
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.changed.Signal()
	l.mu.Unlock()
	return l.Listener.Close()
}

// limitedConn makes room for another connection when it is closed.
type limitedConn struct {
	net.Conn
	once sync.Once
	done func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.done)
	return err
}

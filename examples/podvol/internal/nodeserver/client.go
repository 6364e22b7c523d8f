package nodeserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Volume is a row of /explain, as volumemanager.VolumeStatus describes its JSON. All views are made
// of it: of a running node, and without one.
type Volume struct {
	Namespace        string    `json:"namespace"`
	Pod              string    `json:"pod"`
	PodUID           string    `json:"podUID"`
	Node             string    `json:"node,omitempty"`
	Volume           string    `json:"volume"`
	Plugin           string    `json:"plugin"`
	Source           string    `json:"source"`
	Claim            string    `json:"claim,omitempty"`
	PersistentVolume string    `json:"persistentVolume,omitempty"`
	Path             string    `json:"path"`
	Device           string    `json:"device,omitempty"`
	State            string    `json:"state"`
	Wanted           bool      `json:"wanted"`
	Kept             bool      `json:"kept,omitempty"`
	Since            time.Time `json:"since,omitzero"`
	DurationSeconds  float64   `json:"durationSeconds"`
	Operation        string    `json:"operation,omitempty"`
	Began            time.Time `json:"began,omitzero"`
	Progress         *Progress `json:"progress,omitempty"`
	Failures         int       `json:"failures"`
	NextRetry        time.Time `json:"nextRetry,omitzero"`
	Error            string    `json:"error,omitempty"`
	Cause            string    `json:"cause,omitempty"`
	Advice           string    `json:"advice,omitempty"`
	Uncertain        bool      `json:"uncertain,omitempty"`
	WaitsFor         string    `json:"waitsFor,omitempty"`
	Attachment       string    `json:"attachment,omitempty"`
	Server           *Health   `json:"server,omitempty"`
	Condition        string    `json:"condition,omitempty"`
}

// Progress is how far a set-up is.
type Progress struct {
	Doing string `json:"doing"`
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
}

// String says it as the manager does.
func (p *Progress) String() string { return volume.Progress(*p).String() }

// Health is the trouble of a volume's server.
type Health struct {
	Name     string    `json:"name"`
	Answers  bool      `json:"answers"`
	Since    time.Time `json:"since,omitzero"`
	Failures int       `json:"failures"`
	RetryAt  time.Time `json:"retryAt,omitzero"`
	Error    string    `json:"error,omitempty"`
}

// PodName is the pod's name with its namespace, or its UID where the name is not known.
func (v Volume) PodName() string {
	if v.Pod == "" {
		return v.PodUID
	}
	return v.Namespace + "/" + v.Pod
}

// VolumesOf are the rows of statuses that this process knows itself.
func VolumesOf(statuses []volumemanager.VolumeStatus) ([]Volume, error) {
	text, err := json.Marshal(statuses)
	if err != nil {
		return nil, err
	}
	var rows []Volume
	return rows, json.Unmarshal(text, &rows)
}

// What a command knows volumes by: the node that runs, or the records where none was asked.
const (
	ByNode    = "podvol run-node"
	ByRecords = "records"
)

// ErrNoNode: no podvol run-node keeps the root directory.
var ErrNoNode = errors.New("no podvol run-node keeps it")

// ErrNoDrivers: the podvol run-node that keeps the root directory has no CSI drivers.
var ErrNoDrivers = errors.New("the podvol run-node that keeps it has no CSI drivers")

// patience is for an answer from memory.
const patience = 10 * time.Second

// Drivers asks the podvol run-node that keeps a root directory for its drivers.
func Drivers(ctx context.Context, rootDir string) ([]Driver, error) {
	rows, err := fetch[Driver](ctx, rootDir, driversPath)
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("%s: %w", rootDir, ErrNoDrivers)
	}
	return rows, err
}

// Events asks the podvol run-node that keeps a root directory for the recent events of its pods'
// volumes, its claims and their volumes, the oldest first.
func Events(ctx context.Context, rootDir string) ([]nodeevents.Event, error) {
	return fetch[nodeevents.Event](ctx, rootDir, eventsPath)
}

// Volumes asks the podvol run-node that keeps a root directory for its volumes, in order.
func Volumes(ctx context.Context, rootDir string) ([]Volume, error) {
	return fetch[Volume](ctx, rootDir, "/explain")
}

// VolumesOr asks for the volumes as Volumes does. Where no node answers it returns the recorded
// ones, and the reason as unanswered: [ErrNoNode] if none runs. A node that runs and does not
// answer is reported to warnings, too.
func VolumesOr(ctx context.Context, rootDir string, recorded []volumemanager.VolumeStatus, warnings io.Writer) (rows []Volume, unanswered, err error) {
	rows, unanswered = Volumes(ctx, rootDir)
	switch {
	case unanswered == nil:
		return rows, nil, nil
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case !errors.Is(unanswered, ErrNoNode):
		table.Sentence(warnings, "podvol: %v; so this is by the records", unanswered)
	}
	rows, err = VolumesOf(recorded)
	return rows, unanswered, err
}

// KnownBy says in words which of the two knows the volumes, by what VolumesOr returned.
func KnownBy(unanswered error) string {
	switch {
	case unanswered == nil:
		return "podvol run-node, which runs"
	case errors.Is(unanswered, ErrNoNode):
		return "the records and the mount table: no podvol run-node was asked"
	}
	return "the records and the mount table: podvol run-node runs and does not answer"
}

// Watch calls show with the volumes of the podvol run-node that keeps a root directory, by keys
// that mean nothing else, and again after each change, until ctx or the node ends, or show returns
// an error. show must not keep the map. Where the node has ended the error is io.EOF. It waits for
// the first answer as long as ctx allows: a node that hangs may go on.
func Watch(ctx context.Context, rootDir string, show func(map[string]Volume) error) error {
	answer, err := ask(ctx, rootDir, watchPath, 0)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	volumes := make(map[string]Volume)
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return io.EOF
		}
		text, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		var event nodehttp.Event
		if err := json.Unmarshal(text, &event); err != nil {
			return readable(rootDir, err)
		}
		for key, row := range event.Volumes {
			var v Volume
			if err := json.Unmarshal(row, &v); err != nil {
				return readable(rootDir, err)
			}
			volumes[key] = v
		}
		for _, key := range event.Gone {
			delete(volumes, key)
		}
		if err := show(volumes); err != nil {
			return err
		}
	}
}

// Runs reports whether a podvol run-node keeps a root directory that this user can ask, also one
// that does not answer.
func Runs(ctx context.Context, rootDir string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socketOf(rootDir))
	if err == nil {
		_ = conn.Close()
	}
	return noNode(err) == nil
}

// Alive asks the podvol run-node that keeps a root directory whether it is alive.
func Alive(ctx context.Context, rootDir string) error {
	answer, err := ask(ctx, rootDir, "/healthz", patience)
	if err == nil {
		err = answer.Body.Close()
	}
	return err
}

// WatchNodes tells when the podvol run-node of a root directory of this machine begins or ends.
func WatchNodes() (*manifestdir.Watch, error) { return manifestdir.NewWatch(socketDir) }

// fetch asks for a list.
func fetch[Row any](ctx context.Context, rootDir, path string) (rows []Row, err error) {
	answer, err := ask(ctx, rootDir, path, patience)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	err = json.NewDecoder(answer.Body).Decode(&rows)
	return rows, readable(rootDir, err)
}

// readable says of an error that the answer has it.
func readable(rootDir string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: podvol run-node's answer cannot be read: %w", rootDir, err)
	}
	return err
}

// ask asks the podvol run-node that keeps a root directory. An answer takes as long as limit, 0
// being for ever.
func ask(ctx context.Context, rootDir, path string, limit time.Duration) (*http.Response, error) {
	socket := socketOf(rootDir)
	answer, err := askBy(ctx, func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, path, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rootDir, err)
	}
	return answer, nil
}

func askBy(ctx context.Context, dial func(ctx context.Context, network, addr string) (net.Conn, error), path string, limit time.Duration) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podvol"+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}, Timeout: limit}).Do(request)
	if err == nil && answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("podvol run-node answers %s", answer.Status)
	}
	if none := noNode(err); none != nil {
		return nil, none
	}
	if failed, ok := errors.AsType[*url.Error](err); ok { // which names a host that is none
		return nil, fmt.Errorf("podvol run-node does not answer: %w", failed.Err)
	}
	return answer, err
}

// noNode is the [ErrNoNode] that the error of a connection means; nil: there is a node.
func noNode(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return ErrNoNode
	case errors.Is(err, fs.ErrPermission): // whether there is one is known to root alone
		return fmt.Errorf("%w that this user can ask", ErrNoNode)
	}
	return nil
}

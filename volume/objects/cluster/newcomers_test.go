package cluster_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume/objects/cluster"
)

// A refusal at the begin of a watch is not logged. One that stays is.
func TestEarlyRefusalsAreNotLogged(t *testing.T) {
	before := utilruntime.ErrorHandlers
	defer func() { utilruntime.ErrorHandlers = before }()
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(ctx context.Context, err error, message string, more ...any) {
		klog.FromContext(ctx).Error(err, message, more...)
	}}
	log := new(words)
	config := cluster.Config{Shared: []string{}, Logger: slog.New(slog.NewTextHandler(log, nil))}
	inWorld(t, config, func(t *testing.T, w *world) {
		refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "app", nil).Status()
		refuse := func(d time.Duration) {
			until := time.Now().Add(d)
			w.api.Refuse(func(*http.Request) *metav1.Status {
				if time.Now().Before(until) {
					return &refusal
				}
				return nil
			})
		}
		w.create(configMap("app"))
		refuse(2 * time.Second)
		_, stop := w.count("app")
		time.Sleep(10 * time.Second)
		w.wantValue("app", "value")
		stop()
		if got := log.String(); got != "" {
			t.Errorf("logged: %s", got)
		}
		refuse(time.Minute)
		_, stop = w.count("app")
		defer stop()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := log.String(); !strings.Contains(got, "forbidden") {
			t.Errorf("a minute of refusals is not logged: %s", got)
		}
	})
}

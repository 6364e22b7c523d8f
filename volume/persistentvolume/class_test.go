package persistentvolume_test

import (
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

func TestDefaultClass(t *testing.T) {
	newClass := func(name, value string, minute int) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.Unix(int64(minute)*60, 0),
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": value},
		}}
	}
	for want, classes := range map[string][]*storagev1.StorageClass{
		"":      {newClass("a", "false", 0), {ObjectMeta: metav1.ObjectMeta{Name: "b"}}},
		"only":  {newClass("a", "false", 0), newClass("only", "true", 0)},
		"newer": {newClass("a", "true", 1), newClass("newer", "true", 2)},
		"first": {newClass("second", "true", 1), newClass("first", "true", 1)},
	} {
		if got := persistentvolume.DefaultClass(classes); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if !strings.Contains((&index.UnboundError{Err: claimbinding.ErrUnbound}).Error(), "create one") {
		t.Error("without volumes, the message does not say what to do")
	}
}

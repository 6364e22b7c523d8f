package persisted

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/objects"
)

// Sharing implements [objects.Sharer].
func (r *Store) Sharing(outer objects.Writer) objects.Writer {
	if outer != objects.Writer(r) {
		return outer
	}
	return through{r, objects.Sharing(r.memory)}
}

// through writes to the disk and then to the store that shows the objects.
type through struct {
	*Store
	shown objects.Writer // the store's memory, or the writer of it that shares
}

func (t through) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return t.writeThrough(ctx, object, t.shown.Create, t.create)
}

func (t through) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return t.writeThrough(ctx, object, t.shown.Update, t.changing(objects.Writer.Update))
}

func (t through) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return t.writeThrough(ctx, object, t.shown.UpdateStatus, t.changing(objects.Writer.UpdateStatus))
}

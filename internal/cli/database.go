package cli

import (
	"context"
	"fmt"
	"net/url"

	"go.uber.org/zap"

	"github.com/headrace/headrace/store"
	"github.com/headrace/headrace/store/pgstore"
)

// opener returns what opens a database of the configuration; the error says what is wrong with the DSN, and
// never holds it: it has a password.
func opener(name, dsn string, sizeLimit int64, log *zap.Logger) (func(context.Context) (store.Store, error), error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, fmt.Errorf("databases: the dsn of %s: want postgres://USER:PASSWORD@HOST:PORT/DATABASE", name)
	}
	return func(ctx context.Context) (store.Store, error) { return openPostgres(ctx, dsn, sizeLimit, log) }, nil
}

// openPostgres opens a database. It is the one place that knows the store on Postgres.
func openPostgres(ctx context.Context, dsn string, sizeLimit int64, _ *zap.Logger) (store.Store, error) {
	return pgstore.Open(ctx, pgstore.Config{DSN: dsn, SizeLimit: sizeLimit})
}

"""Generated from ``proto/`` by ``make api``. Do not edit."""

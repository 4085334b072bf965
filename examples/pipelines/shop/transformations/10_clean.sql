select id, amount, at from orders where amount > 0

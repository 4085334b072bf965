select window.start as minute, count(*) as orders, sum(amount) as revenue
from clean
group by window(at, '1 minute')
